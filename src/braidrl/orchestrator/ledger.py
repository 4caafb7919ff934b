"""The ledger: what became of every group that was dispatched, one line each."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from braidrl.monitors.metrics import MetricsWriter
from braidrl.orchestrator.groups import Group


@dataclass(frozen=True)
class Fate:
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
class Ended:
    """What ended between two batches."""

    groups: list[tuple[Group, str]] = field(default_factory=list)
    """Groups of which no episode runs any more, with their outcome: they are recorded."""
    fates: list[Fate] = field(default_factory=list)
    """Groups that are done with: they have a line in the ledger."""


class Ledger:
    """`metrics/groups.jsonl`. A group whose line is not there yet is in flight, buffered or waits to be dispatched, and
    then the checkpoint lists it: between the two, nothing is lost and nothing is there twice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncate_after = MetricsWriter(path).truncate_after

    def write(self, step: int, fates: Iterable[Fate]) -> None:
        """Append what became of groups while the batch of `step` was collected."""
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(fate.line(step)) + "\n" for fate in fates)
