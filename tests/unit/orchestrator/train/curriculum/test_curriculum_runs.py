"""Curricula in runs against the stub engine: the same tasks for any timing, and after a resume."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from braidrl.configs.orchestrator import CurriculumConfig
from braidrl.monitors.metrics import read_metrics
from braidrl.orchestrator.pipeline.no_signal import NoSignalError
from braidrl.transport.types import TrainingBatch
from braidrl.utils.run_folder import RunFolder
from tests.support.stub_trainer import run_stub

POOL = {
    "sampler": {
        "type": "difficulty_pool",
        "pools": {
            "hard": {"threshold": 0.4, "weight": 0.1},
            "normal": {"threshold": 0.6, "weight": 3.0},
            "easy": {"threshold": 1.0, "weight": 0.1},
        },
    }
}
REPLAY = {"sampler": {"type": "replay", "probability": 0.5}}
GATED = {"gates": {"clear": {"type": "advantage_range", "reject_min": -0.2, "reject_max": 0.2}}}
CURRICULA = {"pool": POOL, "replay": REPLAY, "gated": GATED, "gated_pool": POOL | GATED}


async def play(
    model: Path, folder: Path, curriculum: dict[str, Any], slow: tuple[int, ...] = (), **settings: Any
) -> list[TrainingBatch]:
    """Run 12 tasks strictly on-policy, some of them slow to score."""
    source = {
        "name": "stub",
        "env": {"taskset": {"id": "stub-tasks", "num_tasks": 12, "slow_tasks": slow, "seconds": 0.2}},
        "curriculum": CurriculumConfig.model_validate(curriculum),
    }
    train = {"group_size": 4, "sampling": {"max_tokens": 16}, "source": [source]}
    batches, _ = await run_stub(model, folder, train=train, **settings)
    return batches


def content(batches: list[TrainingBatch]) -> list[Any]:
    """Return group, tokens and advantages of every trained sample."""
    return [
        [(s.group_id, s.token_ids.tolist(), s.advantages.tolist()) for s in batch.samples]
        for batch in batches
    ]


def drawn(folder: Path, step: int) -> list[tuple[str, int]]:
    """Return group and task of every episode that ended in a step."""
    records = RunFolder(folder).train_episodes(step).read_bytes().splitlines()
    decoded = map(msgspec.json.decode, records)
    return [(record["braid"]["group"], record["task"]["data"]["idx"]) for record in decoded]


@pytest.mark.parametrize("name", CURRICULA)
async def test_four_steps_draw_and_train_what_two_and_two_do(
    name: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    whole = await play(tiny_model_dir, tmp_path / "whole", CURRICULA[name], max_steps=4)
    first = await play(tiny_model_dir, tmp_path / "parts", CURRICULA[name], max_steps=2)
    second = await play(tiny_model_dir, tmp_path / "parts", CURRICULA[name], max_steps=4, resume_step=2)
    assert content(whole) == content(first + second)
    for step in range(1, 5):
        assert drawn(tmp_path / "whole", step) == drawn(tmp_path / "parts", step)
    last = (
        read_metrics(RunFolder(tmp_path / part).metrics("orchestrator"))[-1] for part in ("whole", "parts")
    )
    shown, resumed = (
        {key: value for key, value in line.items() if key.startswith("curriculum/stub/")} for line in last
    )
    assert shown == resumed and shown["curriculum/stub/tasks"]


@pytest.mark.parametrize("name", ["pool", "replay", "gated_pool"])
async def test_draws_do_not_depend_on_timing(name: str, tiny_model_dir: Path, tmp_path: Path) -> None:
    fast = await play(tiny_model_dir, tmp_path / "fast", CURRICULA[name], max_steps=3)
    slow = await play(tiny_model_dir, tmp_path / "slow", CURRICULA[name], slow=(0, 3, 5, 8), max_steps=3)
    assert content(fast) == content(slow)


async def test_a_taskset_smaller_than_a_batch_is_played_over_and_over(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    for name in ("pool", "replay"):
        source = {"name": "stub", "env": {"taskset": {"id": "stub-tasks", "num_tasks": 1}}}
        source["curriculum"] = CURRICULA[name]
        train = {"group_size": 2, "sampling": {"max_tokens": 16}, "source": [source]}
        batches, _ = await run_stub(tiny_model_dir, tmp_path / name, train=train)
        assert [len(batch.samples) for batch in batches] == [8, 8]
        assert len({sample.group_id for sample in batches[0].samples}) == 4


async def test_a_gate_that_admits_nothing_ends_the_run_and_is_named(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    nothing = {"gates": {"nothing": {"type": "online_difficulty", "above": 1.0, "below": "None"}}}
    with pytest.raises(NoSignalError, match=r"100% were rejected by gates: nothing \(4 groups\)"):
        await play(tiny_model_dir, tmp_path, nothing, max_empty_batches=2)
    assert len(drawn(tmp_path, 1)) == 16  # the rejected episodes are recorded
