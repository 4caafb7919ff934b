"""Results of a finished run: reward curve, held-out reward by version, and recorded rollouts."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from braidrl.monitors.metrics import read_metrics
from braidrl.utils.run_folder import RunFolder


@dataclass
class HeldOut:
    """Reward of one evaluation source under one policy version."""

    version: int
    mean: float
    ci95: float
    """Half-width of the 95% confidence interval of the mean."""


def training_curve(run: RunFolder) -> tuple[list[int], list[float]]:
    """Return the steps and the mean reward of the episodes collected for the batch of each step."""
    rows = [row for row in read_metrics(run.metrics("orchestrator")) if row.get("reward/mean") is not None]
    return [int(row["step"] or 0) for row in rows], [float(row["reward/mean"] or 0.0) for row in rows]


def heldout_rewards(run: RunFolder, source: str) -> list[HeldOut]:
    """Return all evaluations of a source, by version."""
    key = f"eval/{source}/reward"
    rows = [row for row in read_metrics(run.metrics("eval")) if row.get(f"{key}/mean") is not None]
    return [
        HeldOut(int(row["step"] or 0), float(row[f"{key}/mean"] or 0.0), float(row[f"{key}/ci95"] or 0.0))
        for row in rows
    ]


def eval_episodes(run: RunFolder, version: int) -> dict[str, dict[str, Any]]:
    """Return the recorded evaluation episodes of a version by key. Equal keys are the same task in every version."""
    return {record["braid"]["key"]: record for record in _records(run.eval_episodes(version))}


def conversation(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the role and text of each message of the episode's first trace."""
    return [
        (node["message"]["role"], node["message"].get("content") or "")
        for node in record["traces"][0]["nodes"]
    ]


def reward(record: dict[str, Any]) -> float:
    """Return the reward of the episode's first trace."""
    return record["braid"]["rewards"][record["traces"][0]["id"]]


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            yield msgspec.json.decode(line)
