"""What a run does right now: a small file that the orchestrator writes again every second."""

import time
from pathlib import Path

import msgspec

from braidrl.utils.publish import staging_path

FRESH_SECONDS = 15.0
"""An older state says nothing about now."""


class LiveState(msgspec.Struct, frozen=True):
    """Queues, and who waits for what."""

    time: float
    """When this was written, in seconds since 1970."""
    step: int
    """Whose batch is being collected."""
    version: int
    """Policy version that inference serves."""
    idle: float
    """Seconds since something moved last."""
    episodes: int
    """Training episodes in flight ..."""
    most_episodes: int
    """... and how many may be."""
    buffered: int
    """Finished traces that wait for a batch."""
    calls: int
    """Model calls in flight ..."""
    calls_waiting: int
    """... of which so many wait for a replica to take them."""
    evaluating: int
    """Evaluation episodes in flight."""
    waits: str
    """What the orchestrator waits for, in words."""

    @property
    def fresh(self) -> bool:
        """Whether this is about now."""
        return time.time() - self.time < FRESH_SECONDS


def write_live(path: Path, state: LiveState) -> None:
    """Replace the state at `path`; a reader sees the one before or this one. (It need not survive a crash.)"""
    staging = staging_path(path)
    staging.write_bytes(msgspec.json.encode(state))
    staging.replace(path)


def read_live(path: Path) -> LiveState | None:
    """The state at `path`; None where there is none, or one that this version does not understand."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=LiveState)
    except (OSError, msgspec.MsgspecError):
        return None
