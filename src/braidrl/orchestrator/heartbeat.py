"""A line that says who waits for what, whenever nothing moves."""

import asyncio
import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30.0
"""Time without progress after which a line is written."""


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
