"""Trying again until a deadline."""

import asyncio

BACKOFF = 0.1
"""Seconds before the first retry; doubled before each further one."""
MAX_BACKOFF = 2.0
"""Longest pause between two tries, in seconds."""
RETRIED = (429, 502, 503, 504)
"""Statuses of a server that is busy or starting."""


class Backoff:
    """Growing pauses until a deadline."""

    def __init__(self, timeout: float) -> None:
        self.deadline = asyncio.get_running_loop().time() + timeout
        self.pause = BACKOFF

    @property
    def remaining(self) -> float:
        return self.deadline - asyncio.get_running_loop().time()

    async def sleep(self) -> bool:
        """Pause; False when the deadline has come."""
        if self.remaining <= 0:
            return False
        await asyncio.sleep(max(0.0, min(self.pause, self.remaining)))
        self.pause = min(2 * self.pause, MAX_BACKOFF)
        return self.remaining > 0


def describe(error: BaseException) -> str:
    """An exception in words; some have none of their own."""
    return str(error) or type(error).__name__
