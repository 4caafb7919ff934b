"""The gateway: the only endpoint that environments use.

It runs in the orchestrator's event loop and forwards model calls to the replicas of the requested model. It

- gives every call its own seed,
- separates the prefix caches of different policy versions,
- refuses sampling parameters that the trainer cannot replay,
- holds calls while weights are updated or a replica restarts,
- records the policy version of each sampled token and, if configured, its head.
"""

import hmac
import time
from asyncio import CancelledError, Task, create_task
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import msgspec
from aiohttp import web

from braidrl.configs.orchestrator import GatewayConfig
from braidrl.orchestrator.engines.health import watch_health
from braidrl.orchestrator.engines.pool import GENERATE, Replicas
from braidrl.orchestrator.gateway.call import ModelCall, Route, error_response, json_response
from braidrl.orchestrator.gateway.protocol import GenerateRequest, ModelRequest, RequestError
from braidrl.orchestrator.gateway.sessions import Session, Sessions, UnknownTraceError
from braidrl.utils.process import allow_open_files

SESSION_HEADER = "X-Session-ID"
MAX_BODY = 2**30
"""Largest request body in bytes: a guard against exhausting memory, not a limit on contexts."""
CHAT = "/v1/chat/completions"
UNAUTHORIZED = "missing or wrong API key; send the API key of the run as a bearer token"


@dataclass
class Traffic:
    """Traffic since the last `Gateway.take_traffic`."""

    requests: int = 0
    retries: int = 0
    refused: int = 0
    overhead: float = 0.0
    """Seconds spent in the gateway itself, without the wait for a replica or for its answer."""
    queued: float = 0.0
    """Seconds that calls waited for a free replica."""
    max_waiting: int = 0
    """Maximum number of calls for one model that waited at once."""

    def count(self, call: ModelCall, seconds: float) -> None:
        """Add a call that took `seconds` in total."""
        self.retries += call.retries
        self.overhead += seconds - call.waited
        self.queued += call.queued


class Gateway:
    """HTTP server in front of the replicas of one or several models. Use it as an async context manager.

    Args:
        pools: the replicas of each model, by model name.
        seed: seed of the run, from which the seed of every call is derived.
        context: maximum number of tokens of prompt and completion together.
        api_key: key that requests must carry; None to require none.
    """

    def __init__(
        self,
        config: GatewayConfig,
        pools: Mapping[str, Replicas],
        *,
        seed: int,
        context: int,
        api_key: str | None = None,
    ) -> None:
        self.config = config
        self.pools = pools
        self.context = context
        self.route = Route(pools, seed, context, config.request_timeout)
        self.api_key = api_key
        self.sessions = Sessions()
        self.traffic = Traffic()
        self.in_flight = 0
        self.url = ""
        self._watches: list[Task[None]] = []

    # -- lifetime

    async def __aenter__(self) -> Self:
        allow_open_files()  # each call has two connections: from the environment and to the replica
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post(GENERATE, self._generate)
        app.router.add_post(CHAT, self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        # cancel the handler, and with it the generation, when an environment closes its connection
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.config.host, self.config.port, backlog=4096)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        period, timeout = self.config.health_period, self.config.health_timeout
        self._watches = [create_task(watch_health(pool, period, timeout)) for pool in self.pools.values()]
        return self

    async def __aexit__(self, *_: object) -> None:
        for watch in self._watches:
            watch.cancel()
            with suppress(CancelledError):
                await watch
        await self._runner.cleanup()

    # -- sessions

    def open_session(
        self, trace_id: str, key: str, temperature: float | None, head_size: int | None = None
    ) -> None:
        """Register a trace before its first call. See `Session` for the arguments."""
        self.sessions.open(trace_id, Session(key, temperature, head_size))

    def take_session(self, trace_id: str) -> Session | None:
        """Remove and return the session of a trace, or None if there is none."""
        session = self.sessions.pop(trace_id, None)
        if session is not None:
            session.move(None)
        return session

    def expect_late_traces(self) -> None:
        """Accept calls that arrive before `open_session` of their trace, as those of worker processes may."""
        self.sessions.expect_late_traces()

    @property
    def policy(self) -> str:
        """Name of the live policy, which is also the path of its tokenizer."""
        return next(name for name, pool in self.pools.items() if pool.live)

    @property
    def waiting(self) -> int:
        """Number of calls that wait for a free replica."""
        return sum(pool.waiting for pool in self.pools.values())

    def take_traffic(self) -> Traffic:
        """Return the traffic since the last call and reset it."""
        traffic, self.traffic = self.traffic, Traffic()
        traffic.max_waiting = max(pool.admission.take_peak() for pool in self.pools.values())
        return traffic

    # -- routes

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        if not self._authorized(request):
            return error_response(401, UNAUTHORIZED)
        cards = []
        for name, pool in self.pools.items():
            served = next((card for card in pool.models if card.get("id") == name), {})
            limit = min(self.context, served.get("max_model_len") or self.context)
            cards.append({"object": "model", **served, "id": name, "max_model_len": limit})
        return json_response(200, msgspec.json.encode({"object": "list", "data": cards}))

    async def _generate(self, request: web.Request) -> web.Response:
        return await self._call(request, GenerateRequest, GENERATE)

    async def _chat(self, request: web.Request) -> web.Response:
        return await self._call(request, ModelRequest, CHAT)

    async def _call(self, request: web.Request, kind: type[ModelRequest], path: str) -> web.Response:
        body = await request.read()
        self.traffic.requests += 1
        if not self._authorized(request):
            self.traffic.refused += 1
            return error_response(401, UNAUTHORIZED)
        try:
            session = await self.sessions.find(request.headers.get(SESSION_HEADER))
            started = time.perf_counter()
            call = ModelCall(self.route, kind(body), path, session)
            call.check()
        except (RequestError, UnknownTraceError) as error:
            self.traffic.refused += 1
            return error_response(400, str(error))
        self.in_flight += 1
        try:
            return await call.forward()
        finally:
            self.in_flight -= 1
            self.traffic.count(call, time.perf_counter() - started)

    def _authorized(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return self.api_key is None or hmac.compare_digest(given.encode(), self.api_key.encode())
