"""Inference servers of one model, and the connections to all models of a run."""

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
"""Route that accepts and returns token ids."""
PROBE_TIMEOUT = 10.0
"""Timeout of one health check, in seconds."""


class ReplicaError(RuntimeError):
    """A replica failed in a way that the run cannot recover from."""


@dataclass(eq=False)
class Replicas:
    """All servers of one model. The weights of a *live* model are updated, those of a frozen one never change."""

    urls: list[str]
    live: bool
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of every request (the API key)."""
    address_file: Path | None = None
    """File to which the launcher writes the current addresses, one per line, or None if they never change."""
    max_inflight: int | None = None
    """Maximum number of concurrent calls per replica, or None for no limit."""

    def __post_init__(self) -> None:
        self.all = [Replica(_base_url(url)) for url in self.urls]
        self.admission = Admission(self.all, self.max_inflight)
        self.models: list[dict[str, Any]] = []
        self.takes_tokens = True
        """True if the servers accept and return token ids, False if they only offer a chat endpoint."""
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self.all)

    # -- lifetime

    async def connect(self, timeout: float, version: int = 0) -> None:
        """Connect to every server. Raises `ReplicaError` if one is not ready within `timeout` seconds.

        Servers of a frozen model, or with `version` 0, accept requests at once. With a later `version`, servers of a
        live model stay closed until the policy watcher has loaded its weights.
        """
        # limit=0: `Admission` bounds concurrency; a limit of aiohttp would queue calls without any metric
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0)
        self.http = aiohttp.ClientSession(connector=connector, headers=self.headers, auto_decompress=False)
        await asyncio.gather(*(self.wait_healthy(replica, timeout) for replica in self.all))
        self.models = (await self.get_json(self.all[0], "/v1/models"))["data"]
        self.takes_tokens = await self._has_route(self.all[0], GENERATE)
        if self.live:
            await asyncio.gather(*(self._detect_weight_update(replica, timeout) for replica in self.all))
        for replica in self.all:
            replica.version = version if self.live else None
            if version == 0 or not self.live:
                self.set_state(replica, "open")
            else:
                self.set_state(replica, "down", f"waiting for the weights of v{version}")

    async def close(self) -> None:
        await self.http.close()

    async def wait_healthy(self, replica: Replica, timeout: float) -> None:
        """Wait until a server is healthy. Raises `ReplicaError` after `timeout` seconds."""
        backoff = Backoff(timeout)
        while True:
            self._refresh_address(replica)
            seen = await self.fault(replica, min(PROBE_TIMEOUT, max(0.1, backoff.remaining)))
            if seen is None:
                return
            if not await backoff.sleep():
                raise ReplicaError(
                    f"the inference server at {replica.url} was not ready within {timeout:g} s (last seen: "
                    f"{seen}); check its log, or raise orchestrator.client.startup_timeout"
                )

    async def fault(self, replica: Replica, timeout: float) -> str | None:
        """Return what is wrong with a server according to `GET /health`, or None if it is healthy.

        The server of a frozen model may lack that route.
        """
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

    def _refresh_address(self, replica: Replica) -> None:
        """Update the address of a replica: its server may have restarted on another machine."""
        if self.address_file is not None and self.address_file.is_file():
            replica.url = _base_url(self.address_file.read_text().split()[self.all.index(replica)])

    async def get_json(self, replica: Replica, path: str) -> Any:
        return msgspec.json.decode(await self.read(replica, path))

    async def read(self, replica: Replica, path: str) -> bytes:
        """Return the body of a GET request. Raises `ReplicaError` if the status is not 200."""
        limit = aiohttp.ClientTimeout(total=PROBE_TIMEOUT)
        async with self.http.get(replica.url + path, timeout=limit) as response:
            body = await response.read()
            if response.status != 200:
                raise ReplicaError(
                    f"{replica.url}{path} answered {response.status}: {body[:300].decode(errors='replace')}"
                )
            return body

    async def _has_route(self, replica: Replica, path: str) -> bool:
        """Return True if the server has a route. A GET request to a POST route returns 405, not 404."""
        limit = aiohttp.ClientTimeout(total=PROBE_TIMEOUT)
        async with self.http.get(replica.url + path, timeout=limit) as response:
            return response.status != 404

    async def _detect_weight_update(self, replica: Replica, timeout: float) -> None:
        """Detect how a replica loads weights. Raises `ReplicaError` if it cannot."""
        try:
            replica.take_weights = await weight_update_of(Server(self.http, replica.url, Backoff(timeout)))
        except (RefusedError, UnavailableError) as error:
            raise ReplicaError(f"the inference server at {replica.url}: {error}") from error

    # -- states

    def set_state(self, replica: Replica, state: State, reason: str = "") -> None:
        """Set the state of a replica, and wake up the tasks and calls that wait for a change."""
        replica.state, replica.reason = state, reason
        self._changed.set()
        self._changed = asyncio.Event()  # a fresh event: later calls of `changed` wait for the next change
        self.admission.changed()

    def lost(self, replica: Replica, reason: str) -> None:
        """Mark a replica as down because it died, hangs or lost its weights.

        Its requests are cancelled, so that callers retry them on other replicas, and so is a running update.
        """
        if replica.state == "open":
            logger.warning("inference server %s is down: %s", replica.url, reason)
            self.set_state(replica, "down", reason)
        replica.abandon()

    @property
    def waiting(self) -> int:
        """Number of calls that wait for a replica."""
        return len(self.admission)

    async def changed(self) -> None:
        """Wait for the next state change of any replica."""
        await self._changed.wait()

    # -- weights

    async def update(self, replica: Replica, path: Path, version: int, timeout: float) -> None:
        """Load the weights of `version` into a replica, and reopen it after it has acknowledged them.

        If the replica dies during the update, it is marked as down, unless it is the only live one: then the update is
        retried. Raises `ReplicaError` if the replica refuses, acknowledges another version, or does not finish within
        `timeout` seconds.
        """
        self.set_state(replica, "updating", f"weights of v{version}")

        async def update(server: Server) -> Any:
            if replica.sleeps:
                await wake_up(server)
            return await replica.take_weights(server, path.resolve(), version)

        action = f"load the weights of v{version} ({path})"
        acknowledged = await self._retry(replica, update, action, timeout)
        if replica.state == "down":
            return
        if acknowledged != version:
            raise ReplicaError(
                f"weight update failed: {replica.url} acknowledged {acknowledged!r}, but v{version} was sent; check "
                "its log"
            )
        replica.version, replica.sleeps = version, False
        self.set_state(replica, "open")

    async def sleep(self, replica: Replica, timeout: float) -> None:
        """Make a replica free its device until the next `update`.

        Raises `ReplicaError` if it refuses or does not finish within `timeout` seconds.
        """
        self.set_state(replica, "asleep", "the trainer is using the device")
        replica.sleeps = True
        await self._retry(replica, put_to_sleep, "go to sleep (share_device)", timeout)

    async def _retry(
        self, replica: Replica, request: Callable[[Server], Awaitable[Any]], action: str, timeout: float
    ) -> Any:
        """Send a request until it succeeds, for at most `timeout` seconds.

        Marks an unhealthy replica as down and returns None, unless it is the only live one.
        """
        backoff = Backoff(timeout)
        while True:
            self._refresh_address(replica)
            try:
                async with asyncio.timeout(timeout) as deadline:
                    replica.calls.add(deadline)  # `Replicas.lost` expires it
                    return await request(Server(self.http, replica.url, backoff))
            except RefusedError as error:
                raise ReplicaError(f"{replica.url} refused to {action}: {error}") from error
            except (UnavailableError, TimeoutError) as error:
                seen = describe(error)
            finally:
                replica.calls.discard(deadline)
            others = any(other.state != "down" for other in self.all if other is not replica)
            if others and (fault := await self.fault(replica, PROBE_TIMEOUT)) is not None:
                logger.warning("inference server %s did not %s: %s", replica.url, action, fault)
                self.set_state(replica, "down", fault)
                replica.abandon()
                return None
            if not await backoff.sleep():
                raise ReplicaError(
                    f"{replica.url} did not {action} within {timeout:g} s (last seen: {seen}); check its log, or raise "
                    "orchestrator.gateway.update_timeout"
                )


def _base_url(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


async def connect(config: OrchestratorConfig, version: int, stack: AsyncExitStack) -> dict[str, Replicas]:
    """Connect to the servers of the policy and of every frozen model that a source samples from.

    Args:
        version: policy version that the run starts from.
        stack: closes the connections.

    Returns:
        Replicas by model name.

    Raises:
        ReplicaError: a server is not ready in time.
        ValueError: two different models share a name.
    """
    headers = bearer(policy_key(config))
    client = config.client
    limit = config.gateway.max_inflight_per_replica
    policy = Replicas(
        client.base_url, live=True, headers=headers, address_file=client.address_file, max_inflight=limit
    )
    pools = {config.model.path: policy}
    for source in config.train.source:
        frozen = source.algo.sampling.source
        if frozen == "policy":
            continue
        if frozen.name == config.model.path:
            raise ValueError(
                f"the frozen model of source {source.name!r} has the same name as the policy, {frozen.name!r}; serve "
                "it under another name"
            )
        if frozen.name in pools and pools[frozen.name].urls != frozen.base_url:
            raise ValueError(
                f"the frozen model of source {source.name!r}, {frozen.name!r}, is at {frozen.base_url}, but another "
                f"source has it at {pools[frozen.name].urls}; use the same base_url, or serve them under "
                "different names"
            )
        headers = bearer(read_api_key(frozen.api_key_var, f"the frozen model of source {source.name!r}"))
        pools[frozen.name] = Replicas(frozen.base_url, live=False, headers=headers, max_inflight=limit)
    for pool in pools.values():
        stack.push_async_callback(pool.close)
        await pool.connect(config.client.startup_timeout, version)
    return pools


def policy_key(config: OrchestratorConfig) -> str | None:
    """Return the API key of the policy's servers and of the gateway, or None without one."""
    return read_api_key(config.client.api_key_var, "orchestrator.client")
