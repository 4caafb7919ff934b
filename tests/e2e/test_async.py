"""Asynchronous runs with the real engine: a slow trainer under a staleness bound of four; token batches, oversampling
and adaptive concurrency."""

import json
from pathlib import Path
from typing import Any

import pytest

from braidrl.monitors.metrics import read_metrics
from braidrl.utils.run_folder import RunFolder
from tests.support.accounts import check_accounts, ledger
from tests.support.runs import Launch
from tests.support.server_helpers import address_of, running
from tests.support.stub_trainer import orchestrator_config, run_with_stubs

pytestmark = pytest.mark.slow

STEPS, BOUND = 30, 4
SOURCE = {
    # one task in four takes longer than BOUND + 1 trainer steps
    "env": {
        "taskset": {"id": "stub-tasks", "num_tasks": 16, "behaviour": "outage", "slow_tasks": (0, 5, 10, 15)}
    },
    "curriculum": {"gates": {"high": {"type": "online_difficulty", "above": None, "below": 0.62}}},
    "name": "stub",
}


async def run_slowly(model: Path, folder: Path, **settings: Any) -> tuple[RunFolder, list[Any]]:
    """Run with a trainer that takes 0.3 seconds per step and publishes real weights."""
    source = {**SOURCE, **settings.pop("source", {})}
    source["env"]["taskset"]["seconds"] = 3.0
    train = {"group_size": 4, "sampling": {"max_tokens": 12}, "source": [source]}
    async with running(model, max_batch_size=32) as session:
        config = orchestrator_config(
            model,
            folder,
            await address_of(session),
            **{
                "max_steps": STEPS,
                "max_off_policy_steps": BOUND,
                "train": train,
                "max_returns": 1,
                **settings,
            },
        )
        return RunFolder(folder), await run_with_stubs(config, seconds=0.3, weights=model)


def versions(run: RunFolder) -> dict[str, int]:
    """Return the oldest policy version that sampled a token of each recorded trace."""
    oldest = {}
    for path in sorted((run.root / "episodes" / "train").glob("*.jsonl")):
        for record in map(json.loads, path.read_text().splitlines()):
            for trace_id, calls in record["braid"]["versions"].items():
                oldest |= {trace_id: min(version for call in calls for version, _ in call)} if calls else {}
    return oldest


async def test_thirty_steps_with_a_slow_trainer_keep_the_bound_and_lose_no_task(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    run, batches = await run_slowly(tiny_model_dir, tmp_path)
    assert [batch.step for batch in batches] == list(range(1, STEPS + 1))
    oldest, seen = versions(run), []
    for batch in batches:
        assert len(batch.samples) == 8
        for sample in batch.samples:
            assert oldest[sample.trace_id] == sample.version_start
            seen.append(batch.step - 1 - sample.version_start)
    assert min(seen) >= 0 and max(seen) == BOUND
    fates = check_accounts(run)
    assert fates.keys() >= {"trained", "rejected", "too_few", "stale"}
    assert max(line["returns"] for line in ledger(run) if line["fate"] == "trained") == 1
    lines = read_metrics(run.metrics("orchestrator"))
    assert sum(line["groups/returned"] or 0 for line in lines) == fates["stale"]
    assert max(line["staleness/max"] or 0 for line in lines) == BOUND


def test_batches_in_tokens_with_a_surplus_and_adaptive_concurrency(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    """The three features together, with the real processes."""
    launch = Launch(tmp_path, tiny_model_dir)
    keys = (
        "token_batch_size = 700",
        "oversampling_factor = 1.5",
        'concurrency = "adaptive"',
        "min_concurrent = 2",
        "max_concurrent = 64",
    )
    launch.config.write_text(launch.config.read_text().replace("batch_size = 16", "\n".join(keys)))
    launch.finish("--max_steps", "6")
    for row in launch.rows("orchestrator"):
        assert 700 <= row["batch/tokens"] < 700 + 96  # exceeds 700 by less than one trace
        assert 2 <= row["queue/max_concurrent"] <= 64
        assert row["staleness/max"] <= 1
    assert check_accounts(launch.run)["trained"] > 6
