"""Trackers that go wrong, for the tests; a run's config names them by import path."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path

from braidrl.configs.trackers import CustomTrackerConfig
from braidrl.monitors.trackers.contract import Tracked


class Writes:
    """Writes what it is told to `told.txt`, a line each."""

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
    """Raises when it is told of the first step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        raise RuntimeError("the tracker's server is on fire")


class Hangs(Writes):
    """Never returns from the first step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        super().log(step, metrics)
        threading.Event().wait()


class HangsAtTheEnd(Writes):
    """Never returns from closing."""

    def close(self, status: str) -> None:
        super().close(status)
        threading.Event().wait()


class BurnsTheProcessor(Writes):
    """Computes for ever."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        super().log(step, metrics)
        while True:
            pass


def told(folder: Path) -> list[str]:
    """What a tracker above wrote so far."""
    path = folder / "told.txt"
    return path.read_text().splitlines() if path.exists() else []


def wait_for(folder: Path, start: str, timeout: float = 200.0) -> None:
    """Wait until a line that begins with `start` was written."""
    deadline = time.monotonic() + timeout
    while not any(line.startswith(start) for line in told(folder)):
        assert time.monotonic() < deadline, f"waited {timeout:g} s for a line {start!r}, saw {told(folder)}"
        time.sleep(0.02)
