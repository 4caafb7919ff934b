"""Live state of a running job: a small file that the orchestrator rewrites every second."""

import time
from pathlib import Path

import msgspec

from braidrl.utils.publish import staging_path

FRESH_SECONDS = 15.0
"""Maximum age of a state that is still considered current."""


class LiveState(msgspec.Struct, frozen=True):
    """Queue sizes of the orchestrator and the reason why it waits."""

    time: float
    """Time of writing, in seconds since the epoch."""
    step: int
    """Step whose batch is being collected."""
    version: int
    """Policy version that inference serves."""
    idle: float
    """Seconds since the last progress."""
    episodes: int
    """Number of training episodes in flight."""
    most_episodes: int
    """Maximum number of training episodes in flight."""
    buffered: int
    """Number of finished traces buffered for a batch."""
    calls: int
    """Number of model calls in flight, including `calls_waiting`."""
    calls_waiting: int
    """Number of model calls waiting for a replica."""
    evaluating: int
    """Number of evaluation episodes in flight."""
    waits: str
    """Description of what the orchestrator is waiting for."""

    @property
    def fresh(self) -> bool:
        """True if the state is recent enough to describe the present."""
        return time.time() - self.time < FRESH_SECONDS


def write_live(path: Path, state: LiveState) -> None:
    """Replace the state at `path` atomically. There is no fsync: the state need not survive a crash."""
    staging = staging_path(path)
    staging.write_bytes(msgspec.json.encode(state))
    staging.replace(path)


def read_live(path: Path) -> LiveState | None:
    """Return the state at `path`, or None if it is missing or was written by an incompatible version."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=LiveState)
    except (OSError, msgspec.MsgspecError):
        return None
