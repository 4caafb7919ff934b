"""Records of a run: readable rollouts, an episode a JSON line with exact floats and the policy version of every token,
and the ledger, a JSON line for every group that was dispatched."""

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
    """An episode whole, as verifiers records it, and under `braid` what the run knows of it.

    The nodes of each trace carry its token-level streams (`token_ids`, `mask`, `logprobs`, `advantages`,
    ...). `braid.versions` has, by trace id, one list a model call, of `[policy version, tokens]` spans in
    order.
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
    """The records of groups that ended, in dispatch order."""
    for group, outcome in sorted(ended, key=lambda pair: pair[0].place):
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
    """`append_records` in a thread: dumping hundreds of episodes would hold up every model call."""
    await asyncio.to_thread(append_records, path, records)


@dataclass(frozen=True)
class GroupOutcome:
    """The end of a group.

    `trained`: a batch that was shipped has a sample of it. `stale`: it got too old, and its task was returned, to be
    dispatched once more under another number. Otherwise the outcome that it ended with: `no_signal`, `too_few`
    (episodes without error), `rejected` (by a gate).
    """

    group: Group
    fate: str

    def line(self, step: int) -> dict[str, Any]:
        """What is written of it; `step` is the batch that was being collected."""
        return {"step": step, "group": self.group.id, **self.group.work.record(), "fate": self.fate}


@dataclass
class EndedGroups:
    """What ended between two batches."""

    groups: list[tuple[Group, str]] = field(default_factory=list)
    """Groups of which no episode runs any more, with their outcome: they are recorded."""
    fates: list[GroupOutcome] = field(default_factory=list)
    """Groups that are done with: they have a line in the ledger."""


class Ledger:
    """`metrics/groups.jsonl`. A group whose line is not there yet is in flight, buffered or waits to be dispatched, and
    then the checkpoint lists it: between the two, nothing is lost and nothing is there twice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncate_after = MetricsWriter(path).truncate_after

    def write(self, step: int, fates: Iterable[GroupOutcome]) -> None:
        """Append what became of groups while the batch of `step` was collected."""
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(fate.line(step)) + "\n" for fate in fates)
