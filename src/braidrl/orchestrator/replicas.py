"""The inference servers of one model, as the gateway and the policy watcher see them."""

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp
import msgspec

from braidrl.orchestrator.sessions import Session
from braidrl.orchestrator.weight_updates import (
    RefusedError,
    Server,
    UnavailableError,
    WeightUpdate,
    update_embedded,
    weight_update_of,
)
from braidrl.utils.retry import Backoff, describe

logger = logging.getLogger(__name__)

GENERATE = "/inference/v1/generate"
"""The route that takes and gives token ids."""
PROBE_TIMEOUT = 10.0
"""Longest wait for the answer to one health check, in seconds."""


class ReplicaError(RuntimeError):
    """A replica did not do what the run depends on."""


@dataclass(eq=False)
class Replica:
    """One inference server."""

    url: str
    """Address without a trailing `/v1`."""
    state: Literal["open", "updating", "down"] = "down"
    """`open`: takes requests. `updating`: its weights change. `down`: it restarts with unknown weights."""
    version: int | None = None
    """Policy version that it acknowledged; None for a frozen model."""
    load: int = 0
    """Requests that it works on."""
    reason: str = "has not answered yet"
    """Why it takes no requests."""
    take_weights: WeightUpdate = update_embedded
    """How it is given new weights."""


@dataclass(eq=False)
class Replicas:
    """All servers of one model. A *live* model changes its weights; a frozen one never does."""

    urls: list[str]
    live: bool
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with every request (the API key)."""
    address_file: Path | None = None
    """Where their launcher publishes their addresses anew, a line each, when one moves; None: they stay."""

    def __post_init__(self) -> None:
        self.all = [Replica(_bare(url)) for url in self.urls]
        self.models: list[dict[str, Any]] = []
        self.takes_tokens = True
        """Whether they take and give token ids, or messages alone, as chat endpoints do."""
        self.waiting = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self.all)

    # -- lifetime

    async def connect(self, timeout: float, version: int = 0) -> None:
        """Wait until every server answers. Raises `ReplicaError` at the deadline.

        A server of v0 or of a frozen model takes requests at once; with a later `version` it waits for its
        weights.
        """
        # limit=0: a busy run has hundreds of calls in flight, and a pool limit would queue them out of sight
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0)
        self.http = aiohttp.ClientSession(connector=connector, headers=self.headers, auto_decompress=False)
        await asyncio.gather(*(self.wait_healthy(replica, timeout) for replica in self.all))
        self.models = (await self.get_json(self.all[0], "/v1/models"))["data"]
        self.takes_tokens = await self._has_route(self.all[0], GENERATE)
        for replica in self.all:
            if self.live:
                await self._learn_updates(replica, timeout)
            replica.version = version if self.live else None
            if version == 0 or not self.live:
                self.set_state(replica, "open")
            else:
                self.set_state(replica, "down", f"waits for the weights of v{version}")

    async def close(self) -> None:
        await self.http.close()

    async def wait_healthy(self, replica: Replica, timeout: float) -> None:
        """Wait for `GET /health` to answer 200; a frozen model's server may be one without that route."""
        backoff, seen = Backoff(timeout), "nothing"
        while True:
            self._follow(replica)
            try:
                limit = aiohttp.ClientTimeout(total=min(PROBE_TIMEOUT, max(0.1, backoff.remaining)))
                async with self.http.get(f"{replica.url}/health", timeout=limit) as response:
                    if response.status == 200 or (response.status == 404 and not self.live):
                        return
                    seen = f"status {response.status}"
            except (aiohttp.ClientError, TimeoutError) as error:
                seen = describe(error)
            if not await backoff.sleep():
                raise ReplicaError(
                    f"the inference server at {replica.url} was not ready within {timeout:g} s (last seen: "
                    f"{seen}); look at its log, or raise orchestrator.client.startup_timeout"
                )

    def _follow(self, replica: Replica) -> None:
        """Look where a server is now: it may have been started anew on another machine."""
        if self.address_file is not None and self.address_file.is_file():
            replica.url = _bare(self.address_file.read_text().split()[self.all.index(replica)])

    async def get_json(self, replica: Replica, path: str) -> Any:
        return msgspec.json.decode(await self.read(replica, path))

    async def read(self, replica: Replica, path: str) -> bytes:
        """The body of a GET. Raises `ReplicaError` where the answer is not 200."""
        limit = aiohttp.ClientTimeout(total=PROBE_TIMEOUT)
        async with self.http.get(replica.url + path, timeout=limit) as response:
            body = await response.read()
            if response.status != 200:
                raise ReplicaError(
                    f"{replica.url}{path} answered {response.status}: {body[:300].decode(errors='replace')}"
                )
            return body

    async def _has_route(self, replica: Replica, path: str) -> bool:
        """Whether the server knows a path at all: a POST route answers a GET with 405, not 404."""
        limit = aiohttp.ClientTimeout(total=PROBE_TIMEOUT)
        async with self.http.get(replica.url + path, timeout=limit) as response:
            return response.status != 404

    async def _learn_updates(self, replica: Replica, timeout: float) -> None:
        """Find out how it takes weights."""
        try:
            replica.take_weights = await weight_update_of(Server(self.http, replica.url, Backoff(timeout)))
        except (RefusedError, UnavailableError) as error:
            raise ReplicaError(f"the inference server at {replica.url}: {error}") from error

    # -- which one

    def set_state(
        self, replica: Replica, state: Literal["open", "updating", "down"], reason: str = ""
    ) -> None:
        """Change what a replica takes, and wake whoever waits for that."""
        replica.state, replica.reason = state, reason
        self._changed.set()
        self._changed = asyncio.Event()

    def lost(self, replica: Replica, reason: str) -> None:
        """A live replica refused connections or lost its weights: it gets the current version first."""
        if self.live and replica.state == "open":
            logger.warning("inference server %s is down: %s", replica.url, reason)
            self.set_state(replica, "down", reason)

    @property
    def down(self) -> list[Replica]:
        return [replica for replica in self.all if replica.state == "down"]

    async def changed(self) -> None:
        """Return at the next change of any replica's state."""
        await self._changed.wait()

    async def choose(self, session: Session | None, timeout: float) -> Replica:
        """The session's replica, or the one with least load; waits while it takes no requests.

        A session keeps its replica, where its prefix is cached, through weight updates; it leaves one that is
        down. Raises `TimeoutError` with what it waited for.
        """
        backoff = Backoff(timeout)
        self.waiting += 1
        try:
            while True:
                replica = self._prefer(session)
                if replica.state == "open":
                    return replica
                try:
                    # not wait_for, whose task would start to listen only after a change could have passed
                    async with asyncio.timeout(max(0.0, backoff.remaining)):
                        await self.changed()
                except TimeoutError:
                    raise TimeoutError(
                        f"no inference server for {timeout:.0f} s: {replica.url} is {replica.state} "
                        f"({replica.reason})"
                    ) from None
        finally:
            self.waiting -= 1

    def _prefer(self, session: Session | None) -> Replica:
        if session is not None and session.replica is not None and session.replica.state != "down":
            return session.replica
        usable = [replica for replica in self.all if replica.state != "down"]
        replica = min(usable or self.all, key=lambda replica: replica.load)
        if session is not None:
            session.replica = replica
        return replica

    # -- weights

    async def update(self, replica: Replica, path: Path, version: int, timeout: float) -> None:
        """Give a replica the weights of `version` and let requests through once it has acknowledged them.

        A replica that restarts meanwhile is asked again. Raises `ReplicaError` when it refuses, acknowledges
        another version, or does not answer within `timeout` seconds.
        """
        self.set_state(replica, "updating", f"weights of v{version}")
        backoff, seen = Backoff(timeout), "nothing"
        while True:
            self._follow(replica)
            server = Server(self.http, replica.url, backoff)
            try:
                acknowledged = await replica.take_weights(server, path.resolve(), version)
                break
            except RefusedError as error:
                raise ReplicaError(
                    f"{replica.url} refused the weights of v{version} ({path}): {error}"
                ) from error
            except UnavailableError as error:
                seen = str(error)
            if not await backoff.sleep():
                raise ReplicaError(
                    f"{replica.url} did not take the weights of v{version} ({path}) within {timeout:g} s "
                    f"(last seen: {seen}); look at its log, or raise orchestrator.gateway.update_timeout"
                )
        if acknowledged != version:
            raise ReplicaError(f"{replica.url} acknowledged {acknowledged!r} where v{version} was sent")
        replica.version = version
        self.set_state(replica, "open")


def _bare(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")
