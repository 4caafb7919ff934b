"""Inference servers of one model, as the gateway and the policy watcher see them, and the connections to all models."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.orchestrator.engines.admission import Admission
from braidrl.orchestrator.engines.client import RefusedError, Server, UnavailableError
from braidrl.orchestrator.engines.replica import Replica, State
from braidrl.orchestrator.engines.weight_update import (
    put_to_sleep,
    wake_up,
    weight_update_of,
)
from braidrl.utils.http import Backoff, bearer, describe, read_api_key

logger = logging.getLogger(__name__)

GENERATE = "/inference/v1/generate"
"""The route that takes and gives token ids."""
PROBE_TIMEOUT = 10.0
"""Longest wait for the answer to one health check, in seconds."""


class ReplicaError(RuntimeError):
    """A replica did not do what the run depends on."""


@dataclass(eq=False)
class Replicas:
    """All servers of one model. A *live* model changes its weights; a frozen one never does."""

    urls: list[str]
    live: bool
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with every request (the API key)."""
    address_file: Path | None = None
    """Where their launcher publishes their addresses anew, a line each, when one moves; None: they stay."""
    max_inflight: int | None = None
    """Calls that one replica works on at once; None: as many as come."""

    def __post_init__(self) -> None:
        self.all = [Replica(_bare(url)) for url in self.urls]
        self.admission = Admission(self.all, self.max_inflight)
        self.models: list[dict[str, Any]] = []
        self.takes_tokens = True
        """Whether they take and give token ids, or messages alone, as chat endpoints do."""
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
        if self.live:
            await asyncio.gather(*(self._learn_updates(replica, timeout) for replica in self.all))
        for replica in self.all:
            replica.version = version if self.live else None
            if version == 0 or not self.live:
                self.set_state(replica, "open")
            else:
                self.set_state(replica, "down", f"waits for the weights of v{version}")

    async def close(self) -> None:
        await self.http.close()

    async def wait_healthy(self, replica: Replica, timeout: float) -> None:
        """Wait for a server to be well."""
        backoff = Backoff(timeout)
        while True:
            self._follow(replica)
            seen = await self.fault(replica, min(PROBE_TIMEOUT, max(0.1, backoff.remaining)))
            if seen is None:
                return
            if not await backoff.sleep():
                raise ReplicaError(
                    f"the inference server at {replica.url} was not ready within {timeout:g} s (last seen: "
                    f"{seen}); look at its log, or raise orchestrator.client.startup_timeout"
                )

    async def fault(self, replica: Replica, timeout: float) -> str | None:
        """What is wrong with a server, by its `GET /health`; None: nothing. A frozen model's may lack that route."""
        limit = aiohttp.ClientTimeout(total=timeout)
        try:
            async with self.http.get(f"{replica.url}/health", timeout=limit) as response:
                if response.status == 200 or (response.status == 404 and not self.live):
                    return None
                return f"/health answered {response.status}"
        except TimeoutError:
            return f"/health did not answer within {timeout:g} s"
        except aiohttp.ClientError as error:
            return describe(error)

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

    # -- what they take

    def set_state(self, replica: Replica, state: State, reason: str = "") -> None:
        """Change what a replica takes, and wake whoever waits for that."""
        replica.state, replica.reason = state, reason
        self._changed.set()
        self._changed = asyncio.Event()
        self.admission.changed()

    def lost(self, replica: Replica, reason: str) -> None:
        """A replica died, hangs or lost its weights. Whatever it works on is left to others, or cut off: an update."""
        if replica.state == "open":
            logger.warning("inference server %s is down: %s", replica.url, reason)
            self.set_state(replica, "down", reason)
        replica.abandon()

    @property
    def waiting(self) -> int:
        """Calls that wait for a replica to take them."""
        return len(self.admission)

    async def changed(self) -> None:
        """Return at the next change of any replica's state."""
        await self._changed.wait()

    # -- weights

    async def update(self, replica: Replica, path: Path, version: int, timeout: float) -> None:
        """Give a replica the weights of `version` and let requests through once it has acknowledged them.

        One that dies meanwhile is down where others are there; the only one is asked again. Raises `ReplicaError` when
        it refuses, acknowledges another version, or does not answer within `timeout` seconds.
        """
        self.set_state(replica, "updating", f"weights of v{version}")

        async def update(server: Server) -> Any:
            if replica.sleeps:
                await wake_up(server)
            return await replica.take_weights(server, path.resolve(), version)

        what = f"take the weights of v{version} ({path})"
        acknowledged = await self._persist(replica, update, what, timeout)
        if replica.state == "down":
            return
        if acknowledged != version:
            raise ReplicaError(f"{replica.url} acknowledged {acknowledged!r} where v{version} was sent")
        replica.version, replica.sleeps = version, False
        self.set_state(replica, "open")

    async def sleep(self, replica: Replica, timeout: float) -> None:
        """Have a replica free its device; it takes requests again after an `update`. Raises `ReplicaError` as that."""
        self.set_state(replica, "asleep", "the trainer has the device")
        replica.sleeps = True
        await self._persist(replica, put_to_sleep, "go to sleep (share_device)", timeout)

    async def _persist(
        self, replica: Replica, ask: Callable[[Server], Awaitable[Any]], what: str, timeout: float
    ) -> Any:
        """Ask until it is done; a replica that is not well is down instead, unless it is the only one."""
        backoff = Backoff(timeout)
        while True:
            self._follow(replica)
            try:
                async with asyncio.timeout(timeout) as deadline:
                    replica.calls.add(deadline)  # a replica that is lost answers nobody
                    return await ask(Server(self.http, replica.url, backoff))
            except RefusedError as error:
                raise ReplicaError(f"{replica.url} refused to {what}: {error}") from error
            except (UnavailableError, TimeoutError) as error:
                seen = describe(error)
            finally:
                replica.calls.discard(deadline)
            others = any(other.state != "down" for other in self.all if other is not replica)
            if others and (fault := await self.fault(replica, PROBE_TIMEOUT)) is not None:
                logger.warning("inference server %s did not %s: %s", replica.url, what, fault)
                self.set_state(replica, "down", fault)
                replica.abandon()
                return None
            if not await backoff.sleep():
                raise ReplicaError(
                    f"{replica.url} did not {what} within {timeout:g} s (last seen: {seen}); look at its log, or raise "
                    "orchestrator.gateway.update_timeout"
                )


def _bare(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


async def connect(config: OrchestratorConfig, version: int, stack: AsyncExitStack) -> dict[str, Replicas]:
    """The replicas of the policy and of every frozen model that a source samples from, by model name."""
    headers = bearer(policy_key(config))
    client = config.client
    most = config.gateway.max_inflight_per_replica
    policy = Replicas(
        client.base_url, live=True, headers=headers, address_file=client.address_file, max_inflight=most
    )
    pools = {config.model.path: policy}
    for source in config.train.source:
        frozen = source.algo.sampling.source
        if frozen == "policy":
            continue
        if frozen.name == config.model.path:
            raise ValueError(
                f"the frozen model of source {source.name!r} has the policy's name, {frozen.name!r}; serve "
                f"it under another"
            )
        if frozen.name in pools and pools[frozen.name].urls != frozen.base_url:
            raise ValueError(
                f"the frozen model of source {source.name!r}, {frozen.name!r}, stands at {frozen.base_url} here and at "
                f"{pools[frozen.name].urls} elsewhere; serve them under different names"
            )
        headers = bearer(read_api_key(frozen.api_key_var, f"the frozen model of source {source.name!r}"))
        pools[frozen.name] = Replicas(frozen.base_url, live=False, headers=headers, max_inflight=most)
    for pool in pools.values():
        stack.push_async_callback(pool.close)
        await pool.connect(config.client.startup_timeout, version)
    return pools


def policy_key(config: OrchestratorConfig) -> str | None:
    """The API key of the policy's servers, and of the gateway; None: no key."""
    return read_api_key(config.client.api_key_var, "orchestrator.client")
