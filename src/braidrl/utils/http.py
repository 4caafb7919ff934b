"""Calls to servers: retries until a deadline, and API keys, which come from environment variables alone."""

import asyncio
import os

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


def read_api_key(variable: str | None, owner: str) -> str | None:
    """The key that `variable` holds; None where none is named.

    Raises `ValueError` when it is named but not set; `owner` says whose `api_key_var` it is.
    """
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise ValueError(
            f"api_key_var of {owner} names {variable!r}, which is not set; export it or remove the key"
        )
    return os.environ[variable]


def bearer(key: str | None) -> dict[str, str]:
    """The header that carries a key; none without one."""
    return {"Authorization": f"Bearer {key}"} if key else {}
