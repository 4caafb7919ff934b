"""The difficulty pool example: a fair comparison, and what its check asks for."""

from pathlib import Path

import numpy as np
import pytest

from braidrl.configs.load import load_config
from braidrl.configs.rl import RLConfig
from braidrl.monitors.metrics import MetricsWriter
from braidrl.utils.run_folder import RunFolder
from criteria import difficulty_pool
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


@pytest.mark.parametrize(("pools", "learnt"), [((4.0, 8.0, 10.0), True), ((4.0, 6.0, 8.0), False)])
def test_pools_must_find_twice_as_many_groups_with_signal(tmp_path: Path, pools: tuple, learnt: bool) -> None:
    for run, counts in (("standard", (2.0, 4.0, 3.0)), ("rl", pools)):
        writer = MetricsWriter(
            RunFolder(tmp_path / "outputs" / "difficulty_pool" / run).metrics("orchestrator")
        )
        for step, groups in enumerate(counts, start=1):
            writer.log(step, {"groups/signal": groups})
    [measure] = difficulty_pool(tmp_path)
    assert (measure.before, measure.after, measure.learnt) == (3.0, pytest.approx(np.mean(pools)), learnt)
