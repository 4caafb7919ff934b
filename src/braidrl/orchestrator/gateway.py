"""The gateway: the only address that environments see.

It runs inside the orchestrator's event loop and forwards model calls to the replicas of the model that they
name. On the way it gives every call its own seed, keeps the prefix caches of different policies apart,
refuses sampling that the trainer could not replay, waits while weights change or a replica restarts, and
remembers which policy version sampled each token of a session, and the head that it was drawn from if asked to.
"""

import hmac
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import msgspec
from aiohttp import web

from braidrl.configs.orchestrator import GatewayConfig
from braidrl.orchestrator.candidates import PACKED
from braidrl.orchestrator.replicas import GENERATE, Replica, Replicas
from braidrl.orchestrator.requests import GenerateRequest, Request, RequestError, translate_answer
from braidrl.orchestrator.sessions import Session, Sessions, UnknownTraceError, derive_seed
from braidrl.utils.retry import RETRIED, Backoff, describe

logger = logging.getLogger(__name__)

SESSION_HEADER = "X-Session-ID"
MAX_BODY = 2**30
"""Largest request body in bytes: a guard against exhausting memory, not a limit on contexts."""
CHAT = "/v1/chat/completions"


@dataclass
class Traffic:
    """What went through since the last reading."""

    requests: int = 0
    retries: int = 0
    refused: int = 0
    overhead: float = 0.0
    """Seconds spent in the gateway itself: neither waiting for a replica nor for its answer."""


class Gateway:
    """An HTTP server over the replicas of one or several models. Use as an async context.

    Args:
        pools: the replicas of each model, by model name.
        seed: the run's seed, the root of every request's.
        context: context limit in tokens, prompt and completion together.
        api_key: key that requests must carry and that replicas get; None: no key.
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
        self.seed = seed
        self.context = context
        self.api_key = api_key
        self.sessions = Sessions()
        self.traffic = Traffic()
        self.in_flight = 0
        self.url = ""

    # -- lifetime

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post(GENERATE, self._generate)
        app.router.add_post(CHAT, self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        # an environment that gives up closes its connection, and then its generation must stop too
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.config.host, self.config.port, backlog=4096)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    # -- sessions

    def open_session(
        self, trace_id: str, key: str, temperature: float | None, head_size: int | None = None
    ) -> None:
        """Name a trace before its first call. See `Session` for what is to be known of it."""
        self.sessions.open(trace_id, Session(key, temperature, head_size))

    def take_session(self, trace_id: str) -> Session | None:
        """What is known of the session's calls; the gateway forgets it. None where there is none."""
        return self.sessions.pop(trace_id, None)

    @property
    def policy(self) -> str:
        """Name of the live policy, which is also where its tokenizer lies."""
        return next(name for name, pool in self.pools.items() if pool.live)

    @property
    def waiting(self) -> int:
        """Calls that wait for a replica to take them."""
        return sum(pool.waiting for pool in self.pools.values())

    def take_traffic(self) -> Traffic:
        """What went through since the last call of this method."""
        traffic, self.traffic = self.traffic, Traffic()
        return traffic

    # -- routes

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        if not self._authorized(request):
            return error_response(401, "the gateway needs the run's API key")
        cards = []
        for name, pool in self.pools.items():
            served = next((card for card in pool.models if card.get("id") == name), {})
            limit = min(self.context, served.get("max_model_len") or self.context)
            cards.append({"object": "model", **served, "id": name, "max_model_len": limit})
        return json_response(200, msgspec.json.encode({"object": "list", "data": cards}))

    async def _generate(self, request: web.Request) -> web.Response:
        return await self._call(request, GenerateRequest, GENERATE)

    async def _chat(self, request: web.Request) -> web.Response:
        return await self._call(request, Request, CHAT)

    async def _call(self, request: web.Request, kind: type[Request], path: str) -> web.Response:
        body = await request.read()
        self.traffic.requests += 1
        try:
            session = await self.sessions.find(request.headers.get(SESSION_HEADER))
            started = time.perf_counter()
            call = Call(self, kind(body), path, session)
            if not self._authorized(request):
                return error_response(401, "the gateway needs the run's API key")
            call.check()
        except (RequestError, UnknownTraceError) as error:
            self.traffic.refused += 1
            return error_response(400, str(error))
        self.in_flight += 1
        try:
            return await call.forward()
        finally:
            self.in_flight -= 1
            self.traffic.overhead += time.perf_counter() - started - call.elsewhere

    def _authorized(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return self.api_key is None or hmac.compare_digest(given.encode(), self.api_key.encode())


class Call:
    """One model call on its way through the gateway."""

    def __init__(self, gateway: Gateway, request: Request, path: str, session: Session | None) -> None:
        self.gateway = gateway
        self.request = request
        self.path = path
        self.session = session
        self.elsewhere = 0.0
        """Seconds spent waiting for a replica or for its answer."""
        self.number = session.next_call() if session is not None else 0
        self.head_size: int | None = None
        """Tokens of the heads that it captures; None: it captures none."""

    def check(self) -> None:
        """Refuse an unknown model, sampling that the trainer cannot replay, a prompt that does not fit."""
        if self.request.model not in self.gateway.pools:
            raise RequestError(
                f"unknown model {self.request.model!r}; this run serves {sorted(self.gateway.pools)}"
            )
        if self.request.sampling.get("stream"):
            raise RequestError("the gateway does not stream; remove `stream`")
        if self.session is not None:
            self.request.check(self.session)
            if self.gateway.pools[self.request.model].live:
                self.head_size = self.session.head_size
        self.request.limit(self.gateway.context)

    async def forward(self) -> web.Response:
        """The answer of a replica. What fails for a passing reason is tried again until the deadline."""
        timeout = self.gateway.config.request_timeout
        pool = self.gateway.pools[self.request.model]
        backoff, seen = Backoff(timeout), ""
        while True:
            try:
                with self._waiting():
                    replica = await pool.choose(self.session, backoff.remaining)
                answer = await self._try(pool, replica, backoff.remaining)
                if isinstance(answer, web.Response):
                    return answer
                seen = answer
            except TimeoutError as error:
                seen = seen or str(error)
                break
            self.gateway.traffic.retries += 1
            if not await backoff.sleep():
                break
        message = f"no answer within {timeout:g} s (orchestrator.gateway.request_timeout)"
        return error_response(
            504, f"{message}; last seen: {seen or 'the inference server was still generating'}"
        )

    async def _try(self, pool: Replicas, replica: Replica, remaining: float) -> web.Response | str:
        """One attempt: the answer, or what went wrong for a passing reason.

        Raises `TimeoutError` at the deadline.
        """
        version = replica.version
        replica.load += 1
        body = self._body(version)
        try:
            with self._waiting():
                status, answer = await self._post(pool, replica, body, remaining)
        except aiohttp.ClientConnectorError as error:
            pool.lost(replica, describe(error))
            return f"{replica.url}: {describe(error)}"
        except aiohttp.ClientError as error:
            return f"{replica.url}: {describe(error)}"
        finally:
            replica.load -= 1
        if status in RETRIED:
            return f"{replica.url} answered {status}: {answer[:300].decode(errors='replace')}"
        if status != 200:
            return json_response(status, answer)
        return self._accept(pool, replica, version, answer)

    async def _post(self, pool: Replicas, replica: Replica, body: bytes, timeout: float) -> tuple[int, bytes]:
        limit = aiohttp.ClientTimeout(total=max(0.001, timeout))
        headers = {"Content-Type": "application/json", **(PACKED if self.head_size else {})}
        url = replica.url + self.path
        async with pool.http.post(url, data=body, headers=headers, timeout=limit) as response:
            return response.status, await response.read()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Time inside is not the gateway's own."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.elsewhere += time.perf_counter() - started

    def _body(self, version: int | None) -> bytes:
        seed = None
        if self.session is not None:
            seed = derive_seed(self.gateway.seed, self.session.key, self.number)
        return self.request.encode(seed, None if version is None else f"v{version}", self.head_size)

    def _accept(
        self, pool: Replicas, replica: Replica, version: int | None, body: bytes
    ) -> web.Response | str:
        """Note versions and heads of an answer; one older than what the replica acknowledged is thrown away."""
        try:
            spans = self.request.spans(body, version)
            body, heads = self.request.take_heads(body, self.head_size)
        except (msgspec.DecodeError, ValueError) as error:
            return error_response(502, f"{replica.url} gave an answer that cannot be used: {error}")
        if version is not None and spans and min(span[0] for span in spans) < version:
            reason = f"it sampled with v{spans[0][0]} after it had acknowledged v{version}: it restarted"
            if replica.version == version:
                pool.lost(replica, reason)
            return f"{replica.url}: {reason}"
        if self.session is not None and spans:
            self.session.spans[self.number] = spans
            self.session.heads |= heads
        return json_response(200, translate_answer(body))


def json_response(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json")


def error_response(status: int, message: str) -> web.Response:
    """An error in the shape of the OpenAI API."""
    if status >= 500:
        logger.warning("gateway: %s", message)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error: dict[str, Any] = {"error": {"message": message, "type": kind, "code": status}}
    return json_response(status, msgspec.json.encode(error))
