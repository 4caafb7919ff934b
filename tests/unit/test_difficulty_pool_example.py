"""The difficulty pool example: a fair comparison, measured in steps."""

import math
from pathlib import Path

import pytest

from braidrl.configs.load import load_config
from braidrl.configs.rl import RLConfig
from braidrl.monitors.metrics import MetricsWriter
from braidrl.utils.run_folder import RunFolder
from criteria import steps_to_gain
from tests.unit.environments import tasks

EXAMPLE = Path(__file__).parents[2] / "examples" / "difficulty_pool"


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
    assert levels.count(2) + levels.count(6) == len(levels)
    heldout = tasks(**renamed(run.eval.source[0].env["taskset"]))
    assert not {task.data.problem for task in played} & {task.data.problem for task in heldout}


def renamed(taskset: dict) -> dict:
    return {"taskset_id" if key == "id" else key: value for key, value in taskset.items()}


def test_steps_are_counted_to_the_first_evaluation_that_has_gained_enough(tmp_path: Path) -> None:
    writer = MetricsWriter(RunFolder(tmp_path).metrics("eval"))
    for step, mean in ((0, 0.25), (2, 0.375), (4, 0.5), (6, 0.25), (8, 0.625)):
        writer.log(step, {"eval/heldout/reward/mean": mean, "eval/heldout/reward/ci95": 0.1})
    assert [steps_to_gain(tmp_path, gain) for gain in (0.125, 0.25, 0.3, 0.5)] == [2, 4, 8, math.inf]
