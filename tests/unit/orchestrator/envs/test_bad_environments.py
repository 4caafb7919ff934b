"""Faulty environments: they fail an episode or end the run with the reason, and never block it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from braidrl.monitors.metrics import read_metrics
from braidrl.orchestrator.pipeline.backlog import Backlog
from braidrl.utils.run_folder import RunFolder
from tests.support.stub_trainer import run_stub
from tests.unit.orchestrator.pipeline.test_dispatcher import make_env


def records(folder: Path, *steps: int) -> list[dict[str, Any]]:
    paths = (RunFolder(folder).train_episodes(step) for step in steps)
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


async def test_a_taskset_that_raises_stops_the_run_before_any_episode(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    message = r"taskset 'stub-tasks' raised after 3 tasks: FileNotFoundError: tasks\.parquet; the run stops"
    with pytest.raises(RuntimeError, match=message):
        await run_stub(tiny_model_dir, tmp_path, env={"behaviour": "unloadable"})
    assert not RunFolder(tmp_path).train_episodes(1).exists()


def test_an_infinite_taskset_raises_when_the_next_task_is_requested() -> None:
    env = make_env()
    env.env.taskset.config.behaviour = "unloadable"
    type(env.env.taskset).INFINITE, finite = True, type(env.env.taskset).INFINITE
    try:
        env.curriculum = type(env.curriculum)(env.source.curriculum, env.env.taskset)
        backlog = Backlog([env], seed=0)
        assert [backlog.next_group().index for _ in range(3)] == [0, 1, 2]
        with pytest.raises(RuntimeError, match=r"raised after 3 tasks: FileNotFoundError"):
            backlog.next_group()
    finally:
        type(env.env.taskset).INFINITE = finite


async def test_a_nan_reward_is_excluded_and_counted(tiny_model_dir: Path, tmp_path: Path) -> None:
    batches, _ = await run_stub(tiny_model_dir, tmp_path, env={"behaviour": "nan"})
    assert [len(batch.samples) for batch in batches] == [8, 8]
    assert min(sample.reward for batch in batches for sample in batch.samples) >= 0.5  # the others are NaN
    rewards = [reward for record in records(tmp_path, 1, 2) for reward in record["braid"]["rewards"].values()]
    lines = read_metrics(RunFolder(tmp_path).metrics("orchestrator"))
    refused = sum(line.get("refused/nonfinite_reward") or 0 for line in lines)
    assert refused == sum(reward is None or math.isnan(reward) for reward in rewards) > 0
    assert all(math.isfinite(line["reward/mean"] or math.nan) for line in lines)


async def test_an_endless_task_times_out_and_the_rest_trains(tiny_model_dir: Path, tmp_path: Path) -> None:
    taskset = {"id": "stub-tasks", "slow_tasks": (1,), "seconds": 1e6}
    source = {"env": {"taskset": taskset}, "name": "stub", "timeout": 2.0}
    train = {"group_size": 4, "sampling": {"max_tokens": 16}, "source": [source]}
    batches, _ = await run_stub(tiny_model_dir, tmp_path, train=train)
    assert [len(batch.samples) for batch in batches] == [8, 8]
    assert "stub-000001" not in {sample.group_id for batch in batches for sample in batch.samples}
    ended = [record for record in records(tmp_path, 1) if record["braid"]["group"] == "stub-000001"]
    assert [record["braid"]["outcome"] for record in ended] == ["too_few"] * 4
    assert {record["errors"][-1]["message"].split("; ")[0] for record in ended} == {
        "the episode was not generated and scored within 2 s"
    }
