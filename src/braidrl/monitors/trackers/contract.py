"""Interface of experiment trackers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Tracked:
    """Run that a tracker reports."""

    name: str
    """Display name."""
    id: str
    """Unique id of the run. It does not change when the run is resumed."""
    after: int
    """Last step that was already sent before a resumed run; 0 if none was."""
    settings: Mapping[str, Any]
    """Resolved config."""
    folder: Path
    """Folder for files of the tracker."""


class Tracker(Protocol):
    """Receiver of metrics, constructed as `cls(config, tracked)` in its own process.

    An exception ends only that process. A slow tracker does not delay training.
    """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics of an optimizer step or an evaluated policy version. Called several times per step."""

    def close(self, status: str) -> None:
        """Send what is left. The run ended as `done`, `failed`, `interrupted` or `killed`."""
