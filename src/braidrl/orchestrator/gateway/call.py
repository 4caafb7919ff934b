"""One model call on its way through the gateway."""

import asyncio
import errno
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from braidrl.orchestrator.engines.pool import Replicas
from braidrl.orchestrator.engines.replica import Replica
from braidrl.orchestrator.gateway.candidates import PACKED
from braidrl.orchestrator.gateway.protocol import ModelRequest, RequestError, translate_answer
from braidrl.orchestrator.gateway.sessions import Session, derive_seed
from braidrl.utils.http import RETRIED, Backoff, describe

logger = logging.getLogger(__name__)

UNTIMED = aiohttp.ClientTimeout(total=None)
"""A call has a deadline of its own, which moves when its replica is lost."""
LOCAL_FAULTS = (errno.EMFILE, errno.ENFILE)
"""Why a connection cannot be opened for which the server is not to blame: no file may be opened any more."""


@dataclass(frozen=True)
class Route:
    """What a call needs to know of the gateway."""

    pools: Mapping[str, Replicas]
    """The replicas of each model."""
    seed: int
    """The run's."""
    context: int
    """Tokens of prompt and completion together, at most."""
    timeout: float
    """Deadline of a call, in seconds."""


class ModelCall:
    """One model call. `retries` counts the attempts that failed for a passing reason."""

    def __init__(self, route: Route, request: ModelRequest, path: str, session: Session | None) -> None:
        self.route = route
        self.request = request
        self.path = path
        self.session = session
        self.retries = 0
        self.elsewhere = 0.0
        """Seconds spent waiting for a replica or for its answer."""
        self.queued = 0.0
        """Seconds of those spent waiting for a replica."""
        self.number = session.next_call() if session is not None else 0
        self.head_size: int | None = None
        """Tokens of the heads that it captures; None: it captures none."""

    def check(self) -> None:
        """Refuse an unknown model, sampling that the trainer cannot replay, a prompt that does not fit."""
        if self.request.model not in self.route.pools:
            raise RequestError(
                f"unknown model {self.request.model!r}; this run serves {sorted(self.route.pools)}"
            )
        if self.request.sampling.get("stream"):
            raise RequestError("the gateway does not stream; remove `stream`")
        if self.session is not None:
            self.request.check(self.session)
            if self.route.pools[self.request.model].live:
                self.head_size = self.session.head_size
        self.request.limit(self.route.context)

    async def forward(self) -> web.Response:
        """The answer of a replica. An attempt that fails for a passing reason is made again until the deadline: at once
        on a replica that has not failed it, and after a pause when none is left."""
        pool = self.route.pools[self.request.model]
        backoff, seen = Backoff(self.route.timeout), ""
        tried: set[Replica] = set()
        while True:
            try:
                replica = await self._acquire(pool, backoff, tried)
                try:
                    answer = await self._try(pool, replica, backoff)
                finally:
                    pool.admission.release(replica)
            except TimeoutError as error:
                seen = seen or str(error)
                break
            if isinstance(answer, web.Response):
                return answer
            seen = answer
            self.retries += 1
            tried.add(replica)
            if not pool.admission.untried(tried):
                tried.clear()
                with self._waiting():
                    if not await backoff.sleep():
                        break
        message = f"no answer within {self.route.timeout:g} s (orchestrator.gateway.request_timeout)"
        return error_response(
            504, f"{message}; last seen: {seen or 'the inference server was still generating'}"
        )

    async def _acquire(self, pool: Replicas, backoff: Backoff, tried: set[Replica]) -> Replica:
        started = time.perf_counter()
        try:
            with self._waiting():
                return await pool.admission.acquire(self.session, backoff.remaining, tried)
        finally:
            self.queued += time.perf_counter() - started

    async def _try(self, pool: Replicas, replica: Replica, backoff: Backoff) -> web.Response | str:
        """One attempt: the answer, or what went wrong for a passing reason.

        Raises `TimeoutError` at the deadline.
        """
        version = replica.version
        body = self._body(version)
        try:
            with self._waiting():
                status, answer = await self._post(pool, replica, body, backoff.remaining)
        except TimeoutError:
            if backoff.remaining <= 0:
                raise
            return f"{replica.url} was given up: {replica.reason}"
        except aiohttp.ClientConnectorError as error:
            if error.errno not in LOCAL_FAULTS:
                pool.lost(replica, describe(error))
            return f"{replica.url}: {describe(error)}"
        except aiohttp.ClientError as error:
            replica.suspected.set()
            return f"{replica.url}: {describe(error)}"
        if status in RETRIED:
            return f"{replica.url} answered {status}: {answer[:300].decode(errors='replace')}"
        if status != 200:
            return json_response(status, answer)
        return self._accept(pool, replica, version, answer)

    async def _post(self, pool: Replicas, replica: Replica, body: bytes, timeout: float) -> tuple[int, bytes]:
        """Status and body. Raises `TimeoutError` at the deadline, and when the replica is lost meanwhile."""
        headers = {"Content-Type": "application/json", **(PACKED if self.head_size else {})}
        url = replica.url + self.path
        async with asyncio.timeout(timeout) as deadline:
            replica.calls.add(deadline)
            try:
                async with pool.http.post(url, data=body, headers=headers, timeout=UNTIMED) as response:
                    return response.status, await response.read()
            finally:
                replica.calls.discard(deadline)

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
            seed = derive_seed(self.route.seed, self.session.key, self.number)
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
