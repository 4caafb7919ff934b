"""Replay sampler: repeated tasks, buffer, state of a resumed run."""

import json
from typing import Any

import pytest
import verifiers.v1 as vf
from pydantic import ValidationError

from braidrl.configs.orchestrator import CurriculumConfig
from braidrl.orchestrator.train.curriculum import Curriculum
from braidrl.orchestrator.train.curriculum.base import RECENT
from reverse_text import ReverseTextConfig, ReverseTextTaskset
from tests.support.groups import Endless, group_of


def curriculum(taskset: vf.Taskset | None = None, seed: int = 0, **sampler: Any) -> Curriculum:
    config = CurriculumConfig.model_validate({"sampler": {"type": "replay", "probability": 0.5} | sampler})
    return Curriculum(config, taskset or ReverseTextTaskset(ReverseTextConfig(num_tasks=50)), seed)


def endless() -> Endless:
    return Endless(vf.TasksetConfig(id="endless"))


def draw(curriculum: Curriculum, count: int) -> list[int]:
    return [curriculum.next_task().data.idx or 0 for _ in range(count)]


def play(curriculum: Curriculum, number: int, *rewards: float | None) -> None:
    curriculum.observe(group_of(curriculum.task_at(number), rewards, group_id=f"{number}"))


@pytest.mark.parametrize("make", [lambda: None, endless], ids=["finite", "infinite"])
def test_a_task_with_signal_comes_again_once_and_new_ones_go_on_in_order(make: Any) -> None:
    played = curriculum(make())
    assert draw(played, 3) == [0, 1, 2]
    for number, rewards in enumerate([(1.0, 0.0), (1.0, 1.0), (0.0, 0.0)]):
        play(played, number, *rewards)
    assert played.metrics()["buffer"] == 1
    later = draw(played, 20)
    assert (
        later.count(0) == 1
    )  # solved and hopeless tasks do not return, and this one only after its next group
    assert [number for number in later if number] == list(range(3, 22))
    assert played.metrics() | {"epoch": 0.0} == {"tasks": 22.0, "epoch": 0.0, "replayed": 1.0, "buffer": 0.0}
    play(played, 0, 0.5, 0.0)
    assert 0 in draw(played, 20)


def test_a_task_leaves_the_buffer_when_it_is_solved() -> None:
    played = curriculum()
    play(played, 4, 0.5)
    assert played.metrics()["buffer"] == 1
    played.observe(group_of(played.task_at(4), [1.0], group_id="later"))
    assert played.metrics()["buffer"] == 0


def test_bounds_are_excluded_and_may_be_left_out() -> None:
    for bounds, kept in (
        ({"above": 0.25, "below": 0.75}, [2]),
        ({"above": None}, [0, 1, 2, 3]),
        ({"below": None}, [1, 2, 3, 4]),
        ({}, [1, 2, 3]),
    ):
        played = curriculum(**bounds)
        for number in range(5):
            play(played, number, number / 4)
        assert played.state_dict()["sampler"]["buffer"] == kept


def test_the_buffer_is_bounded_and_the_oldest_makes_room() -> None:
    played = curriculum(capacity=2)
    for number in range(4):
        play(played, number, 0.5)
    assert played.state_dict()["sampler"]["buffer"] == [2, 3]


def test_tasks_are_replayed_with_the_given_probability() -> None:
    played = curriculum(endless(), probability=0.25, capacity=1000)
    for number in range(400):
        play(played, number, 0.5)
    draw(played, 1000)
    assert played.metrics()["replayed"] == pytest.approx(250, abs=5 * (1000 * 0.25 * 0.75) ** 0.5)


@pytest.mark.parametrize("make", [lambda: None, endless], ids=["finite", "infinite"])
@pytest.mark.parametrize("done", [0, 3, 30])
def test_a_resumed_sampler_draws_what_the_other_would_have(make: Any, done: int) -> None:
    whole, first, second = (curriculum(make(), seed=5) for _ in range(3))
    for played in (whole, first):
        for _ in range(done):
            (number,) = draw(played, 1)
            play(played, number, number % 3 / 2)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.metrics() == whole.metrics()
    assert draw(whole, 40) == draw(second, 40)


def test_an_old_task_of_an_infinite_taskset_is_found_again() -> None:
    played = curriculum(endless())
    draw(played, RECENT + 10)
    play(played, 3, 0.5)  # no longer in memory
    assert 3 in draw(played, 20)


def test_a_range_without_rewards_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"no reward is above 0\.5 and below 0\.5"):
        curriculum(above=0.5, below=0.5)
