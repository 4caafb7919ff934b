"""HTTP client of one inference server, with a deadline."""

from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from braidrl.utils.http import RETRIED, Backoff, describe


class UnavailableError(RuntimeError):
    """Server is busy, starting or unreachable. The request may be retried."""


class RefusedError(RuntimeError):
    """Server rejected a request. A retry would fail as well."""


@dataclass
class Server:
    """One server. `backoff` holds the deadline that all calls share."""

    http: aiohttp.ClientSession
    url: str
    backoff: Backoff
    headers: dict[str, str] = field(default_factory=dict)
    """Headers sent in addition to those of `http`."""

    async def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body. Raises `UnavailableError`."""
        return await self._call("GET", path)

    async def post(self, path: str, body: Any = None) -> bytes:
        """Return the body of a response with status 200. Raises `UnavailableError` or `RefusedError`."""
        status, answer = await self._call("POST", path, b"" if body is None else msgspec.json.encode(body))
        if status != 200:
            raise RefusedError(f"{path} answered {status}: {answer[:500].decode(errors='replace')}")
        return answer

    async def _call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        limit = aiohttp.ClientTimeout(total=max(0.1, self.backoff.remaining))
        headers = {**self.headers, **({"Content-Type": "application/json"} if body else {})}
        try:
            async with self.http.request(
                method, self.url + path, data=body, headers=headers, timeout=limit
            ) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnavailableError(describe(error)) from error
        if response.status in RETRIED:
            raise UnavailableError(f"status {response.status}: {answer[:500].decode(errors='replace')}")
        return response.status, answer
