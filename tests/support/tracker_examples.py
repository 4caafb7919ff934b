"""Faulty trackers that a run's config names by import path."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path

from braidrl.configs.trackers import CustomTrackerConfig
from braidrl.monitors.trackers.contract import Tracked


class Writes:
    """Tracker that writes each call to `told.txt`, one per line."""

    def __init__(self, config: CustomTrackerConfig, tracked: Tracked) -> None:
        tracked.folder.mkdir(parents=True, exist_ok=True)
        self.path = tracked.folder / "told.txt"
        self._write(f"opened {tracked.name} after {tracked.after} with {sorted(tracked.settings)}")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._write(f"{step} {dict(metrics)}")

    def close(self, status: str) -> None:
        self._write(f"closed {status}")

    def _write(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")


class Raises(Writes):
    """Tracker that raises at the first step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        raise RuntimeError("the tracker's server is on fire")


class Hangs(Writes):
    """Tracker that never returns from the first step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        super().log(step, metrics)
        threading.Event().wait()


class HangsAtTheEnd(Writes):
    """Tracker that never returns from closing."""

    def close(self, status: str) -> None:
        super().close(status)
        threading.Event().wait()


class BurnsTheProcessor(Writes):
    """Tracker in an endless busy loop."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        super().log(step, metrics)
        while True:
            pass


def told(folder: Path) -> list[str]:
    """Return the lines that a tracker has written so far."""
    path = folder / "told.txt"
    return path.read_text().splitlines() if path.exists() else []


def wait_for(folder: Path, start: str, timeout: float = 200.0) -> None:
    """Wait for a line that begins with `start`."""
    deadline = time.monotonic() + timeout
    while not any(line.startswith(start) for line in told(folder)):
        assert time.monotonic() < deadline, f"waited {timeout:g} s for a line {start!r}, saw {told(folder)}"
        time.sleep(0.02)
