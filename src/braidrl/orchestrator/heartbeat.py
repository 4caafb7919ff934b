"""Who waits for what: a line whenever nothing moves, and a file for those who look."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from braidrl.monitors.live import LiveState, write_live

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30.0
"""Time without progress after which a line is written."""
SHARE_SECONDS = 1.0
"""Age of the state that others see."""


async def heartbeat(
    progress: Callable[[], float], *describe: Callable[[], str], seconds: float = HEARTBEAT_SECONDS
) -> None:
    """Log what everybody waits for when nothing has moved for `seconds`, and again as long as nothing does; runs until
    cancelled. `progress`: when something moved last, by `time.monotonic`."""
    while True:
        idle = time.monotonic() - progress()
        if idle >= seconds:
            waits = "; ".join(words() for words in describe)
            logger.info("no progress for %.0f s; %s", idle, waits)
            idle = 0.0
        await asyncio.sleep(max(0.01, seconds - idle))


async def share(path: Path, state: Callable[[], LiveState], seconds: float = SHARE_SECONDS) -> None:
    """Write what happens now to `path`, again and again until cancelled. A disk that is full stops no run."""
    while True:
        with suppress(OSError):
            write_live(path, state())
        await asyncio.sleep(seconds)
