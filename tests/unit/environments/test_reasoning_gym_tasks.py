"""Generators of the public package `reasoning-gym`, an extra that the test extra includes."""

import pytest
from pydantic import ValidationError

from reasoning_gym_tasks import ReasoningGymConfig
from tests.support.environments import play, tasks
from tests.support.scripted_model import ScriptedModel

ID = "reasoning-gym-tasks"
SUMS = {"id": ID, "num_tasks": 1, "params": {"max_terms": 2, "max_digits": 1}}


def test_tasks_follow_from_the_config_alone() -> None:
    drawn = [task.data for task in tasks(ID, num_tasks=30)]
    assert drawn == [task.data for task in tasks(ID, num_tasks=30)]
    assert drawn != [task.data for task in tasks(ID, num_tasks=30, seed=1)]
    assert drawn[0].prompt.startswith("State the final answer")


def test_splits_share_nothing() -> None:
    train, heldout = (
        {task.data.prompt for task in tasks(ID, num_tasks=200, params=SUMS["params"], split=split)}
        for split in ("train", "heldout")
    )
    assert train and heldout and not train & heldout


@pytest.mark.parametrize("dataset", ["leg_counting", "spell_backward", "mini_sudoku", "knights_knaves"])
async def test_a_right_answer_is_right(dataset: str) -> None:
    (task,) = tasks(ID, num_tasks=1, dataset=dataset)
    reply = f"I think.\n<answer>{task.data.demonstration}</answer>"
    (trace,) = (await play(ScriptedModel(reply), {"taskset": {"id": ID, "dataset": dataset}}, task)).traces
    assert trace.ok and trace.reward == 1.0


@pytest.mark.parametrize("tagged", [True, False])
async def test_the_tags_may_be_left_out(tagged: bool) -> None:
    (task,) = tasks(ID, **{key: value for key, value in SUMS.items() if key != "id"})
    answer = task.data.demonstration
    reply = f"<answer>{answer}</answer>" if tagged else answer
    (trace,) = (await play(ScriptedModel(reply), {"taskset": SUMS}, task)).traces
    assert trace.ok and trace.reward == 1.0


async def test_an_answer_that_the_generator_cannot_read_is_wrong() -> None:
    (task,) = tasks(ID, num_tasks=1, dataset="prime_factorization")
    (trace,) = (await play(ScriptedModel("no idea"), {"taskset": {"id": ID}}, task)).traces
    assert trace.ok and trace.reward == 0.0


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"dataset": "chain_sums"}, "did you mean chain_sum"),
        ({"params": {"max_term": 3}}, "'max_term': 3.* invalid for 'chain_sum'"),
        ({"params": {"max_terms": 0}}, "'max_terms': 0.* invalid for 'chain_sum'"),
        ({"params": {"seed": 3}}, "set by the taskset"),
        ({"prompt": "?"}, "does not contain {question}"),
    ],
)
def test_config_that_makes_no_sense_is_refused(keys: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ReasoningGymConfig(id=ID, **keys)
