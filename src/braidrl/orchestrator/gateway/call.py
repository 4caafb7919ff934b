"""A model call in the gateway: replica choice, retries and the accepted answer."""

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
"""No timeout of the HTTP client: `ModelCall` has its own, which is moved up when the replica is lost."""
OPEN_FILE_LIMITS = (errno.EMFILE, errno.ENFILE)
"""Connection errors caused by the limit of open files on this machine, not by the server."""


@dataclass(frozen=True)
class Route:
    """Settings of the gateway that all calls share."""

    pools: Mapping[str, Replicas]
    """Replicas by model name."""
    seed: int
    """Seed of the run."""
    context: int
    """Maximum number of tokens of prompt and completion together."""
    timeout: float
    """Deadline of a call, in seconds."""


class ModelCall:
    """One model call. `retries` counts the attempts that failed with a transient error."""

    def __init__(self, route: Route, request: ModelRequest, path: str, session: Session | None) -> None:
        self.route = route
        self.request = request
        self.path = path
        self.session = session
        self.retries = 0
        self.waited = 0.0
        """Seconds spent waiting for a replica or for its answer."""
        self.queued = 0.0
        """Seconds of `waited` that were spent waiting for a replica."""
        self.number = session.next_call() if session is not None else 0
        self.head_size: int | None = None
        """Number of tokens per captured head; None to capture none."""

    def check(self) -> None:
        """Raise `RequestError` for an unknown model, a prompt that is too long or sampling that cannot be replayed."""
        if self.request.model not in self.route.pools:
            raise RequestError(
                f"unknown model {self.request.model!r}; use one that this run serves: {sorted(self.route.pools)}"
            )
        if self.request.sampling.get("stream"):
            raise RequestError("`stream` is set, but the gateway does not stream; remove `stream`")
        if self.session is not None:
            self.request.check(self.session)
            if self.route.pools[self.request.model].live:
                self.head_size = self.session.head_size
        self.request.limit(self.route.context)

    async def forward(self) -> web.Response:
        """Return the answer of a replica.

        Retries transient errors until the deadline: immediately on a replica that has not failed this call, and after a
        pause once all have failed.
        """
        pool = self.route.pools[self.request.model]
        backoff, last_error = Backoff(self.route.timeout), ""
        tried: set[Replica] = set()
        while True:
            try:
                replica = await self._acquire(pool, backoff, tried)
                try:
                    answer = await self._try(pool, replica, backoff)
                finally:
                    pool.admission.release(replica)
            except TimeoutError as error:
                last_error = last_error or str(error)
                break
            if isinstance(answer, web.Response):
                return answer
            last_error = answer
            self.retries += 1
            tried.add(replica)
            if not pool.admission.untried(tried):
                tried.clear()
                with self._waiting():
                    if not await backoff.sleep():
                        break
        return error_response(
            504,
            f"no answer within {self.route.timeout:g} s (last seen: "
            f"{last_error or 'the inference server was still generating'}); check the inference log, or raise "
            "orchestrator.gateway.request_timeout",
        )

    async def _acquire(self, pool: Replicas, backoff: Backoff, tried: set[Replica]) -> Replica:
        started = time.perf_counter()
        try:
            with self._waiting():
                return await pool.admission.acquire(self.session, backoff.remaining, tried)
        finally:
            self.queued += time.perf_counter() - started

    async def _try(self, pool: Replicas, replica: Replica, backoff: Backoff) -> web.Response | str:
        """Make one attempt. Returns the answer, or the message of a transient error.

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
            # the pool ended the call early, because the replica was lost
            return f"{replica.url} was lost: {replica.reason}"
        except aiohttp.ClientConnectorError as error:
            if error.errno not in OPEN_FILE_LIMITS:
                pool.lost(replica, describe(error))
            return f"{replica.url}: {describe(error)}"
        except aiohttp.ClientError as error:
            replica.suspected.set()  # triggers a health check; the replica may be fine
            return f"{replica.url}: {describe(error)}"
        if status in RETRIED:
            return f"{replica.url} answered {status}: {answer[:300].decode(errors='replace')}"
        if status != 200:
            return json_response(status, answer)
        return self._accept(pool, replica, version, answer)

    async def _post(self, pool: Replicas, replica: Replica, body: bytes, timeout: float) -> tuple[int, bytes]:
        """Return status and body. Raises `TimeoutError` at the deadline, or earlier if the replica is lost."""
        headers = {"Content-Type": "application/json", **(PACKED if self.head_size else {})}
        url = replica.url + self.path
        async with asyncio.timeout(timeout) as deadline:
            replica.calls.add(deadline)  # lets the pool end this call when the replica is lost
            try:
                async with pool.http.post(url, data=body, headers=headers, timeout=UNTIMED) as response:
                    return response.status, await response.read()
            finally:
                replica.calls.discard(deadline)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Add the time inside the context to `waited`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.waited += time.perf_counter() - started

    def _body(self, version: int | None) -> bytes:
        seed = None
        if self.session is not None:
            seed = derive_seed(self.route.seed, self.session.key, self.number)
        return self.request.encode(seed, None if version is None else f"v{version}", self.head_size)

    def _accept(
        self, pool: Replicas, replica: Replica, version: int | None, body: bytes
    ) -> web.Response | str:
        """Record versions and heads of an answer. Rejects one from an older version than the replica acknowledged."""
        try:
            spans = self.request.spans(body, version)
            body, heads = self.request.take_heads(body, self.head_size)
        except (msgspec.DecodeError, ValueError) as error:
            return error_response(502, f"{replica.url} returned an invalid answer: {error}")
        # a server that restarted under the same address serves its initial weights until it is updated again
        if version is not None and spans and min(span[0] for span in spans) < version:
            reason = f"sampled with v{spans[0][0]} after acknowledging v{version}, so it has restarted"
            if replica.version == version:
                pool.lost(replica, reason)
            return f"{replica.url}: {reason}"
        if self.session is not None and spans:
            self.session.spans[self.number] = spans
            self.session.heads |= heads
        return json_response(200, translate_answer(body))


def json_response(status: int, body: bytes) -> web.Response:
    """Return a response with a JSON body."""
    return web.Response(status=status, body=body, content_type="application/json")


def error_response(status: int, message: str) -> web.Response:
    """Return an error in the format of the OpenAI API. Server errors are logged."""
    if status >= 500:
        logger.warning("gateway: %s", message)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error: dict[str, Any] = {"error": {"message": message, "type": kind, "code": status}}
    return json_response(status, msgspec.json.encode(error))
