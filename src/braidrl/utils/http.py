"""HTTP client helpers: retries with backoff, and API keys, which are read only from environment variables."""

import asyncio
import os

BACKOFF = 0.1
"""Seconds to wait before the first retry; doubles with each further retry."""
MAX_BACKOFF = 2.0
"""Maximum number of seconds between two attempts."""
RETRIED = (429, 502, 503, 504)
"""HTTP status codes that are retried: the server is busy or starting."""


class Backoff:
    """Exponential backoff with a deadline."""

    def __init__(self, timeout: float) -> None:
        self.deadline = asyncio.get_running_loop().time() + timeout
        self.pause = BACKOFF

    @property
    def remaining(self) -> float:
        return self.deadline - asyncio.get_running_loop().time()

    async def sleep(self) -> bool:
        """Wait before the next attempt. Return False if the deadline has passed."""
        if self.remaining <= 0:
            return False
        await asyncio.sleep(max(0.0, min(self.pause, self.remaining)))
        self.pause = min(2 * self.pause, MAX_BACKOFF)
        return self.remaining > 0


def describe(error: BaseException) -> str:
    """Return the message of an exception, or its class name if the message is empty."""
    return str(error) or type(error).__name__


def read_api_key(variable: str | None, owner: str) -> str | None:
    """Return the API key in the environment variable `variable`, or None if no variable is configured.

    Raises `ValueError` if the variable is not set. `owner` is the config block of `api_key_var`, for the error.
    """
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise ValueError(
            f"api_key_var of {owner} names {variable!r}, which is not set; export it or remove the key"
        )
    return os.environ[variable]


def bearer(key: str | None) -> dict[str, str]:
    """Return the authorization header for a key; empty without a key."""
    return {"Authorization": f"Bearer {key}"} if key else {}
