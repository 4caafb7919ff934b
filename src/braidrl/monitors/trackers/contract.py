"""What an experiment tracker is to Braid."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Tracked:
    """The run that a tracker is told about."""

    name: str
    """What people call it."""
    id: str
    """Tells it from every other run, and is the same when it is resumed."""
    after: int
    """The step that it continues after, whose metrics and those before it were told already; 0: none were."""
    settings: Mapping[str, Any]
    """The resolved config."""
    folder: Path
    """Where the tracker may keep files."""


class Tracker(Protocol):
    """Takes metrics. It is made with (its config, the `Tracked`), in a process of its own: whatever it raises ends that
    process alone, and however long it takes, training goes on."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of an optimizer step, or of an evaluated policy version. One step comes in several parts."""

    def close(self, status: str) -> None:
        """The run has ended: `done`, `failed`, `interrupted` or `killed`. Send the rest."""
