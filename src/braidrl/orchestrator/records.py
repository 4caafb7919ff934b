"""Readable rollouts: an episode a JSON line, with exact floats and the policy version of every token."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from braidrl.orchestrator.envs import Finished
from braidrl.orchestrator.groups import Group


def episode_record(
    finished: Finished, *, env: str, step: int, outcome: str, group: str | None = None
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
