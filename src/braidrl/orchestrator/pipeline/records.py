"""Records of a run: episodes, one JSON line each with exact floats and the policy version of every token, and the
ledger, one JSON line for every dispatched group."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from braidrl.monitors.metrics import MetricsWriter
from braidrl.orchestrator.envs.source import FinishedEpisode
from braidrl.orchestrator.pipeline.groups import Group


def episode_record(
    finished: FinishedEpisode, *, env: str, step: int, outcome: str, group: str | None = None
) -> dict[str, Any]:
    """Return the record of an episode: the complete record of verifiers, with Braid's fields under `braid`.

    The nodes of each trace contain its token-level streams (`token_ids`, `mask`, `logprobs`, `advantages`, ...).
    `braid.versions` maps each trace id to one list per model call, of `[policy version, tokens]` spans in order.
    """
    record = finished.episode.to_record(float_decimals=None)
    record["braid"] = {
        "env": env,
        "step": step,
        "key": finished.key,
        "group": group,
        "outcome": outcome,
        "seconds": finished.seconds,
        "rewards": {trace.id: trace.reward for trace in finished.episode.traces},
        "versions": finished.spans,
    }
    return record


def group_records(ended: Iterable[tuple[Group, str]], step: int) -> Iterable[dict[str, Any]]:
    """Yield the records of all episodes of ended groups, in dispatch order."""
    for group, outcome in sorted(ended, key=lambda pair: pair[0].sort_key):
        for _, finished in sorted(group.finished.items()):
            yield episode_record(finished, env=group.env.name, step=step, outcome=outcome, group=group.id)


def append_records(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Append records to a JSONL file."""
    encoder = msgspec.json.Encoder()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for record in records:
            file.write(encoder.encode(record) + b"\n")


async def write_records(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Append records in a thread. Encoding hundreds of episodes would block the event loop and all model calls."""
    await asyncio.to_thread(append_records, path, records)


@dataclass(frozen=True)
class GroupOutcome:
    """Final outcome of a group."""

    group: Group
    outcome: str
    """`trained`: a shipped batch has a sample of the group. `stale`: it became too old, and its task was queued again
    under a new number. `no_signal`, `too_few` (too few episodes without error) or `rejected` (by a gate): it ended
    without samples."""

    def line(self, step: int) -> dict[str, Any]:
        """Return the group's line in the ledger; `step` is the batch that was being collected."""
        return {"step": step, "group": self.group.id, **self.group.work.record(), "fate": self.outcome}


@dataclass
class EndedGroups:
    """Groups that ended between two batches."""

    groups: list[tuple[Group, str]] = field(default_factory=list)
    """Groups without running episodes, with the outcome of the group. Their episodes are recorded."""
    outcomes: list[GroupOutcome] = field(default_factory=list)
    """Groups whose final outcome is known. They are written to the ledger."""


class Ledger:
    """Writer of `metrics/groups.jsonl`, one line per dispatched group.

    Every group is either in the ledger or in the work that the checkpoint lists (queued, in flight or buffered), never
    in both. No group is lost or repeated on resume.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncate_after = MetricsWriter(path).truncate_after

    def write(self, step: int, outcomes: Iterable[GroupOutcome]) -> None:
        """Append the outcomes of groups that were decided while the batch of `step` was collected."""
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(each.line(step)) + "\n" for each in outcomes)
