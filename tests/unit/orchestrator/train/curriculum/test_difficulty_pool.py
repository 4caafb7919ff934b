"""Difficulty pool sampler: pools of tasks, frequency of draws, state of a resumed run."""

import json
import logging
from collections import Counter
from typing import Any

import pytest
import verifiers.v1 as vf
from pydantic import ValidationError

from braidrl.configs.orchestrator import CurriculumConfig
from braidrl.orchestrator.train.curriculum import Curriculum
from reverse_text import ReverseTextConfig, ReverseTextTaskset
from tests.support.groups import Endless, group_of

POOLS = {
    "easy": {"threshold": 1.0, "weight": 0.2},
    "hard": {"threshold": 0.25, "weight": 0.2},
    "normal": {"threshold": 0.75, "weight": 1.0},
}
"""Pools of docs/curricula.md in another order, which must not matter."""


def curriculum(num_tasks: int, pools: dict[str, Any] = POOLS, seed: int = 0) -> Curriculum:
    config = CurriculumConfig.model_validate({"sampler": {"type": "difficulty_pool", "pools": pools}})
    return Curriculum(config, ReverseTextTaskset(ReverseTextConfig(id="r", num_tasks=num_tasks)), seed)


def draw(curriculum: Curriculum, count: int) -> list[int | None]:
    return [curriculum.next_task().data.idx for _ in range(count)]


def play(curriculum: Curriculum, number: int, *rewards: float | None, group_id: str = "g") -> None:
    curriculum.observe(group_of(curriculum.task_at(number), rewards, group_id=group_id))


def pools(curriculum: Curriculum) -> dict[str, float]:
    """Return the metrics of non-empty pools."""
    metrics = curriculum.metrics()
    return {
        name.removeprefix("pools/"): value for name, value in metrics.items() if value and name != "tasks"
    }


@pytest.mark.parametrize(
    ("rewards", "pool"),
    [
        ((0.0, 0.0), "hard"),
        ((0.5, 0.0), "hard"),  # thresholds are inclusive
        ((0.5, 0.25), "normal"),
        ((1.0, 0.5), "normal"),
        ((1.0, 0.75), "easy"),
        ((1.0, 1.0), "easy"),
        ((3.0, 1.0), "easy"),  # above every threshold
        ((-1.0, -1.0), "hard"),
    ],
)
def test_a_task_is_in_the_pool_of_its_mean_reward(rewards: tuple[float, ...], pool: str) -> None:
    played = curriculum(1)
    assert pools(played) == {"unseen": 1}
    play(played, 0, *rewards)
    assert pools(played) == {pool: 1}


def test_the_latest_valid_group_decides() -> None:
    played = curriculum(2)
    play(played, 1, 1.0, 1.0, group_id="a")
    play(played, 1, 0.0, 0.0, group_id="b")
    assert pools(played) == {"unseen": 1, "hard": 1}
    play(played, 1, None, float("nan"), group_id="c")  # neither has a reward
    assert pools(played) == {"unseen": 1, "hard": 1}
    play(played, 1, None, 0.5, group_id="d")  # only the scored one counts
    assert pools(played) == {"unseen": 1, "normal": 1}


def test_episodes_that_come_one_by_one_are_one_group() -> None:
    """Algorithms with the barrier `episode` pass episodes separately."""
    played = curriculum(1)
    play(played, 0, 1.0, group_id="a")
    assert pools(played) == {"easy": 1}
    play(played, 0, 0.0, group_id="a")
    assert pools(played) == {"normal": 1}
    play(played, 0, 0.0, group_id="b")
    assert pools(played) == {"hard": 1}


def test_tasks_are_drawn_with_replacement_by_their_weight_from_the_first_observation_on() -> None:
    """With weights 1, 1 (unseen), 0.2 (hard) and 1 (normal), counts of 4000 draws are within 5 standard deviations."""
    played = curriculum(4)
    play(played, 2, 0.0)
    play(played, 3, 0.5)
    counts = Counter(draw(played, 4000))
    for number, weight in enumerate((1.0, 1.0, 0.2, 1.0)):
        share = weight / 3.2
        assert counts[number] == pytest.approx(4000 * share, abs=5 * (4000 * share * (1 - share)) ** 0.5)


def test_weight_0_disables_a_pool() -> None:
    played = curriculum(3, POOLS | {"easy": {"threshold": 1.0, "weight": 0}})
    play(played, 1, 1.0)
    assert set(draw(played, 200)) == {0, 2}


def test_without_any_weight_all_tasks_are_drawn_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    played = curriculum(
        2, {"open": {"threshold": 0.9, "weight": 1.0}, "solved": {"threshold": 1.0, "weight": 0}}
    )
    for number in range(2):
        play(played, number, 1.0)
    with caplog.at_level(logging.WARNING):
        assert set(draw(played, 50)) == {0, 1}
    assert [
        line for line in caplog.messages if "every task is in a pool of weight 0" in line
    ] == caplog.messages
    assert len(caplog.messages) == 1
    assert played.metrics()["weightless"] == 50
    play(played, 1, 0.0, group_id="h")
    assert set(draw(played, 50)) == {1}
    assert played.metrics()["weightless"] == 0


@pytest.mark.parametrize("done", [0, 1, 7, 20])
def test_a_resumed_sampler_draws_what_the_other_would_have(done: int) -> None:
    whole, first, second = curriculum(5), curriculum(5), curriculum(5)
    for played in (whole, first):
        for step in range(done):
            (number,) = draw(played, 1)
            assert number is not None
            play(played, number, step % 2, group_id=f"{step}")
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.metrics() == whole.metrics()
    play(whole, 3, 0.5)
    play(second, 3, 0.5)
    assert draw(whole, 30) == draw(second, 30)


def test_the_seed_decides_what_is_drawn() -> None:
    assert draw(curriculum(100, seed=1), 20) == draw(curriculum(100, seed=1), 20)
    assert draw(curriculum(100, seed=1), 20) != draw(curriculum(100, seed=2), 20)


def test_a_selection_of_tasks_keeps_their_numbers() -> None:
    config = CurriculumConfig.model_validate({"sampler": {"type": "difficulty_pool", "pools": POOLS}})
    taskset = ReverseTextTaskset(ReverseTextConfig(num_tasks=9)).skip(4).shuffle(seed=1)
    played = Curriculum(config, taskset)
    assert set(draw(played, 200)) == {4, 5, 6, 7, 8}
    assert played.task_at(7).data.idx == 7
    play(played, 7, 0.0)
    assert pools(played) == {"unseen": 4, "hard": 1}


def test_tasks_that_are_not_selected_any_more_have_no_pool() -> None:
    first, second = curriculum(4), curriculum(2)
    for number in range(4):
        play(first, number, 0.0)
    second.load_state_dict(first.state_dict())
    assert pools(second) == {"hard": 2}
    assert set(draw(second, 50)) == {0, 1}


def test_an_infinite_taskset_is_refused() -> None:
    config = CurriculumConfig.model_validate({"sampler": {"type": "difficulty_pool", "pools": POOLS}})
    with pytest.raises(ValueError, match=r"taskset 'endless' is infinite.*limit the number of tasks"):
        Curriculum(config, Endless(vf.TasksetConfig(id="endless")))


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ({}, "at least 1 item"),
        ({"a": {"threshold": 0.5}, "b": {"threshold": 0.5}}, "pools 'a' and 'b' have the same threshold 0.5"),
        ({"a": {"threshold": 0.5, "weight": 0}}, "every pool has weight 0"),
        ({"a": {"threshold": 0.5, "weight": -1}}, "greater than or equal to 0"),
        ({"a": {"threshold": float("nan")}}, "finite number"),
    ],
)
def test_pools_that_make_no_sense_are_refused(pools: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        curriculum(2, pools)
