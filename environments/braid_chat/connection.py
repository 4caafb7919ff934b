"""HTTP client of the chat loop: one keep-alive connection pool per event loop, shared by all its rollouts."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from verifiers.v1.errors import InterceptionError

ATTEMPTS = 3
"""Maximum number of attempts per model call. Only status 429 and 5xx are retried."""
BACKOFF = 0.5
"""Seconds before the first retry. Doubles with each further retry."""
RETRY_COUNT = "x-stainless-retry-count"
"""Header that marks a retry. The interception server then returns the recorded answer if an earlier attempt was
already committed to the trace."""

_LIFETIMES: dict[asyncio.AbstractEventLoop, AsyncGenerator[aiohttp.ClientSession, None]] = {}
_SESSIONS: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}


@dataclass(frozen=True)
class Answer:
    """Response of the interception server to one model call."""

    status: int
    body: Any
    """Decoded JSON, or the text if it is not JSON."""

    @property
    def error(self) -> str:
        """Error message of an answer whose status is not 200."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return str(error.get("message", error)) if isinstance(error, dict) else str(error or self.body)


async def complete(endpoint: str, secret: str, request: dict[str, Any]) -> Answer:
    """Request one chat completion from the interception server at `endpoint`. Status 429 and 5xx are retried.

    Raises:
        InterceptionError: the server cannot be reached.
    """
    session = await _shared_session()
    payload = msgspec.json.encode(request)
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(BACKOFF * 2 ** (attempt - 1))
            headers[RETRY_COUNT] = str(attempt)
        try:
            async with session.post(
                f"{endpoint}/chat/completions", data=payload, headers=headers
            ) as response:
                status, raw = response.status, await response.read()
        except aiohttp.ClientError as error:
            raise InterceptionError(
                f"cannot connect to the interception server at {endpoint}: {error}"
            ) from error
        if status != 429 and status < 500:
            break
    try:
        return Answer(status, msgspec.json.decode(raw))
    except msgspec.DecodeError:
        return Answer(status, raw.decode(errors="replace"))


async def _shared_session() -> aiohttp.ClientSession:
    loop = asyncio.get_running_loop()
    if loop not in _SESSIONS:
        _LIFETIMES[loop] = _session_lifetime(loop)
        _SESSIONS[loop] = await anext(_LIFETIMES[loop])
    return _SESSIONS[loop]


async def _session_lifetime(loop: asyncio.AbstractEventLoop) -> AsyncGenerator[aiohttp.ClientSession, None]:
    """Keep a session open until its event loop shuts down.

    asyncio closes pending async generators at shutdown (`loop.shutdown_asyncgens`), the only cleanup hook that an
    event loop offers.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30.0)
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            yield session
    finally:
        _SESSIONS.pop(loop, None)
        _LIFETIMES.pop(loop, None)
