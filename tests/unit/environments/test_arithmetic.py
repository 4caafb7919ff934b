"""The `arithmetic` taskset: expressions and grading."""

import pytest
from pydantic import ValidationError

from arithmetic import LEVELS, ArithmeticConfig, Expression
from braid_tasks import last_integer, split_of
from tests.support.environments import play, tasks
from tests.support.scripted_model import ScriptedModel


def test_tasks_follow_from_the_config_alone() -> None:
    drawn = [task.data for task in tasks("arithmetic", num_tasks=50)]
    assert drawn == [task.data for task in tasks("arithmetic", num_tasks=50)]
    assert drawn != [task.data for task in tasks("arithmetic", num_tasks=50, seed=1)]
    assert drawn[0].prompt == f"{drawn[0].problem}=" == "4-5="
    assert drawn[0].demonstration == str(drawn[0].answer) == "-1"


@pytest.mark.parametrize("level", LEVELS)
def test_a_task_is_of_its_level(level: int) -> None:
    for task in tasks("arithmetic", num_tasks=100, levels=[level]):
        expression = Expression.parse(task.data.problem)
        assert expression is not None and task.data.level == level
        assert len(expression.operands) == LEVELS[level].operands
        assert max(expression.operands) <= LEVELS[level].largest
        assert set(expression.operators) <= set(LEVELS[level].operators)
        assert task.data.answer == eval(task.data.problem)


def test_all_levels_are_drawn() -> None:
    levels = [task.data.level for task in tasks("arithmetic", num_tasks=300, levels=[1, 4, 6])]
    assert set(levels) == {1, 4, 6}
    assert all(80 < levels.count(level) < 120 for level in levels)


@pytest.mark.parametrize("level", LEVELS)
def test_splits_share_nothing(level: int) -> None:
    train = {task.data.problem for task in tasks("arithmetic", levels=[level])}
    heldout = {task.data.problem for task in tasks("arithmetic", levels=[level], split="heldout", seed=7)}
    assert train and heldout and not train & heldout
    assert {split_of(problem) for problem in heldout} == {"heldout"}


def test_a_demonstrator_may_be_wrong() -> None:
    drawn = [task.data for task in tasks("arithmetic", num_tasks=400, demonstrator_accuracy=0.4)]
    slips = [abs(int(data.demonstration) - data.answer) for data in drawn]
    assert 0.3 < slips.count(0) / 400 < 0.5 and max(slips) == 9


@pytest.mark.parametrize("keys", [{"levels": []}, {"levels": [8]}, {"prompt": "?"}, {"split": "dev"}])
def test_config_that_makes_no_sense_is_refused(keys: dict) -> None:
    with pytest.raises(ValidationError):
        ArithmeticConfig(id="arithmetic", **keys)


@pytest.mark.parametrize(
    "text", ["", "3", "3+", "+3", "3 + 4", "03+4", "3--4", "3/4", "(3+4)", "3+4=", "٣+٤"]
)
def test_what_is_no_expression(text: str) -> None:
    assert Expression.parse(text) is None


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("7", "7"),
        ("-7", "-7"),
        ("The answer is 12.", "12"),
        ("3+4=7", "7"),
        ("9-2", "2"),
        ("", None),
        ("seven", None),
    ],
)
def test_the_last_integer_counts(reply: str, number: str | None) -> None:
    assert last_integer(reply) == number


@pytest.mark.parametrize(("reply", "reward"), [("-1", 1.0), ("It is -1.", 1.0), ("1", 0.0), ("", 0.0)])
async def test_scoring_through_verifiers(reply: str, reward: float) -> None:
    block = {"taskset": {"id": "arithmetic", "num_tasks": 1}}
    model = ScriptedModel(reply)
    episode = await play(model, block)
    (trace,) = episode.traces
    assert episode.ok and trace.reward == reward
    assert trace.metrics == {f"level_{trace.task.data.level}": reward}
    assert model.requests[0]["messages"] == [{"role": "user", "content": "4-5="}]
