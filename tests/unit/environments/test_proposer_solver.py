"""The `proposer-solver` environment: proposals, attempts and rewards."""

import pytest
import verifiers.v1 as vf
from pydantic import ValidationError

from braidrl.configs.environment import resolve_env
from proposer_solver import ProposerSolverConfig, ProposerTask
from proposer_solver.env import usefulness
from tests.support.environments import endpoint, play, tasks
from tests.support.scripted_model import ScriptedModel

BLOCK = {"taskset": {"id": "proposer-solver"}, "n": 3}


def sums() -> ProposerTask:
    """Source task of additions with operands up to 20."""
    keys = {"operators": "+", "smallest_limit": 20, "largest_limit": 20}
    return tasks("proposer-solver", num_tasks=1, **keys)[0]


def rewards(episode: vf.Episode, agent: str) -> list[float]:
    return [trace.reward for trace in episode.by_agent[agent]]


def test_tasks_follow_from_the_config_alone() -> None:
    drawn = [task.data for task in tasks("proposer-solver", num_tasks=100)]
    assert drawn == [task.data for task in tasks("proposer-solver", num_tasks=100)]
    assert drawn != [task.data for task in tasks("proposer-solver", num_tasks=100, seed=1)]
    assert all(data.prompt == f"{data.operator}{data.limit}" and 5 <= data.limit <= 99 for data in drawn)
    heldout = [task.data for task in tasks("proposer-solver", num_tasks=100, split="heldout")]
    assert not {data.prompt for data in drawn} & {data.prompt for data in heldout}


def test_demonstrations_are_valid() -> None:
    for task in tasks("proposer-solver", num_tasks=100):
        assert str(task.data.problem(task.data.demonstration)) == task.data.demonstration


@pytest.mark.parametrize("reply", ["", "7", "7+21", "7-2", "7+2+1", "7 + 2", "7+2=9", "07+2", "-7+2"])
def test_what_is_no_valid_problem(reply: str) -> None:
    assert sums().data.problem(reply) is None


@pytest.mark.parametrize(
    "keys", [{"operators": "/"}, {"smallest_limit": 9, "largest_limit": 8}, {"solver_prompt": "solve!"}]
)
def test_config_that_makes_no_sense_is_refused(keys: dict) -> None:
    with pytest.raises(ValidationError):
        ProposerSolverConfig(id="proposer-solver", **keys)


def test_usefulness() -> None:
    assert [usefulness(share) for share in (0, 0.25, 0.5, 1)] == [0.5, 0.875, 1.0, 0.5]


async def test_solvers_attempt_what_was_proposed() -> None:
    model = ScriptedModel("7+12", "19", "18", "19")
    episode = await play(model, BLOCK, sums())
    assert episode.ok and rewards(episode, "solver") == [1.0, 0.0, 1.0]
    assert rewards(episode, "proposer") == [pytest.approx(0.5 + 2 * 2 / 3 / 3)]
    (proposal,) = episode.by_agent["proposer"]
    assert proposal.metrics == {"valid": 1.0, "solved": pytest.approx(2 / 3)}
    assert [request["messages"][0]["content"] for request in model.requests] == ["+20", *["7+12="] * 3]
    assert all(trace.agent.trainable for trace in episode.traces)


async def test_a_proposal_that_is_no_problem_is_worth_nothing() -> None:
    episode = await play(ScriptedModel("7-2"), BLOCK, sums())
    (proposal,) = episode.traces
    assert episode.ok and (proposal.reward, proposal.metrics) == (0.0, {"valid": 0.0})


@pytest.mark.parametrize(
    ("keys", "trained"),
    [
        ({"train_proposer": False}, {"proposer": False, "solver": True}),
        ({"train_solver": False}, {"proposer": True, "solver": False}),
        ({"solver": {"model": "old"}}, {"proposer": True, "solver": False}),
    ],
)
async def test_one_role_may_be_left_out_of_training(keys: dict, trained: dict) -> None:
    episode = await play(ScriptedModel("7+12", "19"), BLOCK | keys, sums())
    assert {trace.agent.name: trace.agent.trainable for trace in episode.traces} == trained


async def test_a_failed_attempt_is_no_wrong_answer() -> None:
    model = ScriptedModel("7+12", "19", (400, "no such model"), "19")
    episode = await play(model, BLOCK, sums())
    assert [trace.ok for trace in episode.by_agent["solver"]] == [True, False, True]
    assert rewards(episode, "proposer") == [0.5] and not episode.errors


async def test_a_proposal_that_nobody_could_attempt_has_no_grade() -> None:
    async with ScriptedModel((400, "no such model")).serve() as base_url:
        block = {**BLOCK, "solver": {"model": "old", "client": endpoint(base_url).model_dump()}}
        episode = await play(ScriptedModel("7+12"), block, sums())
    assert not episode.ok and "all 3 solver attempts failed" in episode.last_error.message
    assert episode.by_agent["proposer"][0].rewards == {}


async def test_a_proposer_that_is_gone_ends_the_episode() -> None:
    episode = await play(ScriptedModel((400, "no such model")), BLOCK, sums())
    (proposal,) = episode.traces
    assert not episode.ok and proposal.last_error.type == "ProviderError" and proposal.rewards == {}


def test_the_environment_may_be_named_beside_its_taskset() -> None:
    config = resolve_env({"id": "proposer-solver", "n": 2, "taskset": {"id": "proposer-solver"}})
    assert (config.n, config.env_id) == (2, "proposer-solver+proposer-solver")
