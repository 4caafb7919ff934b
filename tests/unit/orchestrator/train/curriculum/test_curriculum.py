"""Order of tasks, and errors of tasksets."""

from collections.abc import Iterator

import pytest
import verifiers.v1 as vf

from braidrl.configs.orchestrator import CurriculumConfig
from braidrl.orchestrator.train.curriculum import Curriculum
from reverse_text import ReverseTextConfig, ReverseTextTaskset
from tests.support.groups import Endless


class Broken(Endless):
    """Taskset that is declared infinite, but ends."""

    def load(self) -> Iterator[vf.Task[vf.TaskData]]:
        yield vf.Task(vf.TaskData(prompt="the only one"))


def curriculum(num_tasks: int = 3) -> Curriculum:
    return Curriculum(CurriculumConfig(), ReverseTextTaskset(ReverseTextConfig(num_tasks=num_tasks)))


def positions(curriculum: Curriculum, count: int) -> list[int | None]:
    return [curriculum.next_task().data.idx for _ in range(count)]


def test_a_finite_taskset_cycles_in_source_order() -> None:
    assert positions(curriculum(), 7) == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("done", [0, 1, 3, 5])
def test_a_resumed_sampler_continues_where_it_stopped(done: int) -> None:
    whole, first, second = curriculum(), curriculum(), curriculum()
    positions(first, done)
    second.load_state_dict(first.state_dict())
    assert positions(whole, 8)[done:] == positions(second, 8 - done)


def test_an_infinite_taskset_streams_and_resumes() -> None:
    first, second = (Curriculum(CurriculumConfig(), Endless(vf.TasksetConfig())) for _ in range(2))
    assert positions(first, 3) == [0, 1, 2]
    second.load_state_dict(first.state_dict())
    assert positions(second, 2) == [3, 4]
    assert second.task_at(7).data.prompt == "task 7"


def test_an_infinite_taskset_that_ends_is_an_error() -> None:
    broken = Curriculum(CurriculumConfig(), Broken(vf.TasksetConfig(id="broken")))
    positions(broken, 1)
    with pytest.raises(ValueError, match=r"'broken' is declared infinite, but ended after 1 tasks"):
        broken.next_task()


def test_an_empty_taskset_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'reverse-text' has no tasks"):
        Curriculum(CurriculumConfig(), ReverseTextTaskset(ReverseTextConfig(id="reverse-text")).take(0))


def test_a_missing_task_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"has no task 9, but the checkpoint refers to it"):
        curriculum().task_at(9)


def test_metrics_show_the_way_through_the_tasks() -> None:
    sampled = curriculum()
    positions(sampled, 6)
    assert sampled.metrics() == {"tasks": 6.0, "epoch": 2.0}
