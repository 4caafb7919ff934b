"""Status of a running orchestrator: a log line when there is no progress, and a live state file."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from braidrl.monitors.live import LiveState, write_live

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30.0
"""Time without progress after which a line is logged."""
LIVE_SECONDS = 1.0
"""Seconds between two writes of the live state."""


async def heartbeat(
    progress: Callable[[], float], *describe: Callable[[], str], seconds: float = HEARTBEAT_SECONDS
) -> None:
    """Log a status line after every `seconds` without progress. Runs until cancelled.

    Args:
        progress: returns the time of the last progress, by `time.monotonic`.
        describe: each returns one part of the line.
    """
    while True:
        idle = time.monotonic() - progress()
        if idle >= seconds:
            logger.info("no progress for %.0f s; %s", idle, "; ".join(part() for part in describe))
            idle = 0.0
        await asyncio.sleep(max(0.01, seconds - idle))


async def publish_live(path: Path, state: Callable[[], LiveState], seconds: float = LIVE_SECONDS) -> None:
    """Write the live state to `path` every `seconds`. Runs until cancelled."""
    while True:
        with suppress(OSError):  # the file is only a display: a full disk must not stop the run
            write_live(path, state())
        await asyncio.sleep(seconds)
