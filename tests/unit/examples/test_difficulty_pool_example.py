"""The difficulty pool example: equal conditions in the comparison, and its criterion."""

import asyncio
import math
from pathlib import Path

import pytest
from engine_helpers import save_scaled
from server_helpers import running

from braidrl.configs.core.load import load_config
from braidrl.configs.rl import RLConfig
from braidrl.orchestrator.pipeline.records import append_records
from braidrl.utils.run_folder import RunFolder
from criteria import expected_curve, pools_ahead, steps_to_gain
from measure import expected_rewards
from tests.support.environments import play, tasks
from tests.support.paths import EXAMPLES
from tests.support.scripted_model import ScriptedModel

EXAMPLE = EXAMPLES / "difficulty_pool"


def config(*files: str) -> RLConfig:
    words = [word for file in files for word in ("@", str(EXAMPLE / file))]
    return load_config(RLConfig, [*words, "--output_dir", "run"])


def test_both_runs_are_the_same_but_for_the_sampler() -> None:
    pools, plain = config("rl.toml"), config("rl.toml", "standard.toml")
    source, other = pools.orchestrator.train.source[0], plain.orchestrator.train.source[0]
    assert (source.curriculum.sampler.type, other.curriculum.sampler.type) == ("difficulty_pool", "standard")
    other.curriculum = source.curriculum
    assert pools == plain


def test_an_eighth_of_its_tasks_is_within_reach_and_none_is_held_out() -> None:
    run = config("rl.toml").orchestrator
    played = tasks(**renamed(run.train.source[0].env["taskset"]))
    levels = [task.data.level for task in played]
    assert levels.count(2) == pytest.approx(len(levels) / 8, rel=0.2)
    assert levels.count(2) + levels.count(7) == len(levels)
    heldout = tasks(**renamed(run.eval.source[0].env["taskset"]))
    assert not {task.data.problem for task in played} & {task.data.problem for task in heldout}


def renamed(taskset: dict) -> dict:
    return {"taskset_id" if key == "id" else key: value for key, value in taskset.items()}


async def test_the_expected_reward_of_what_a_run_saved(tiny_model_dir: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    save_scaled(tiny_model_dir, run.weights(4), 1.0)
    save_scaled(tiny_model_dir, run.weights(8), 4.0)
    block = {"taskset": {"id": "arithmetic", "num_tasks": 2, "levels": [2]}}
    chosen = tasks("arithmetic", num_tasks=2, levels=[2])
    played = [await play(ScriptedModel("7"), block, task) for task in chosen]
    append_records(
        run.eval_episodes(0),
        [item.to_record(float_decimals=None) | {"braid": {"key": item.id}} for item in played],
    )
    asked = [(task.data.prompt, str(task.data.answer)) for task in chosen]
    async with running(tiny_model_dir) as session, session.get("/health") as response:
        url, model = str(response.url.with_path("")), str(tiny_model_dir)
        curve = await asyncio.to_thread(expected_curve, run.root, url, model)
        folders = [tiny_model_dir, run.weights(8)]
        start, end = await asyncio.to_thread(expected_rewards, url, model, folders, asked)
    assert len(set(asked)) == 2 and start != pytest.approx(end, rel=0.1)
    assert curve == {0: pytest.approx(start), 4: pytest.approx(start), 8: pytest.approx(end)}


def test_steps_are_counted_until_enough_is_gained_for_the_first_time() -> None:
    curve = {0: 0.25, 4: 0.375, 8: 0.5, 12: 0.25, 16: 0.625}
    gains = (0.0625, 0.125, 0.25, 0.3125, 0.5)
    assert [steps_to_gain(curve, gain) for gain in gains] == [2, 4, 8, pytest.approx(12 + 10 / 3), math.inf]


@pytest.mark.parametrize(
    ("pools", "groups", "learnt"),
    [
        ({0: 0.5, 4: 0.7}, 7.0, [True, True]),
        ({0: 0.5, 4: 0.625, 8: 0.75}, 6.0, [False, False]),
        ({0: 0.5, 4: 0.6}, 7.0, [False, True]),
    ],
)
def test_pools_must_be_ahead_in_steps_and_groups(pools: dict, groups: float, learnt: list[bool]) -> None:
    measures = pools_ahead({0: 0.5, 4: 0.625, 8: 0.75}, pools, 3.0, groups)
    assert [measure.learnt for measure in measures] == learnt
    assert (measures[0].before, measures[1].after) == (pytest.approx(4.8), groups)
