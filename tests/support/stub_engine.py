"""A stub inference server: the routes of a real one, random tokens of the tiny tokenizer, no model.

Tokens depend only on the request's seed, so runs are reproducible. Tests can slow it down, break it, or restart it.
"""

import asyncio
import math
import random
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
from aiohttp import web

LETTERS = range(64, 90)
"""Token ids of the letters `a` to `z`."""
END = 258
"""Token id of `<|im_end|>`."""


@dataclass
class StubEngine:
    """Stub of one replica, used as an async context manager. `url` ends in `/v1`."""

    model: str = "tiny"
    length: int = 8
    """Number of tokens of an answer, the end token included."""
    latency: float = 0.0
    """Seconds per answer."""
    update_seconds: float = 0.0
    """Seconds per weight update."""
    max_model_len: int = 512
    port: int = 0
    version: int = 0
    numeric_ids: bool = False
    """True to send log-probs in the format of stock vLLM."""
    acknowledges: int | None = None
    """Version acknowledged for every update instead of the requested one, or None."""
    failures: list[int] = field(default_factory=list)
    """HTTP statuses with which the next generations fail."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of all model calls, in order of arrival."""
    headers: list[dict[str, str]] = field(default_factory=list)
    updates: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of all weight updates."""
    overlapping: int = 0
    """Maximum number of concurrent updates so far."""
    cancelled: int = 0
    """Number of generations whose caller disconnected."""
    events: list[str] = field(default_factory=list)
    """Sequence of `sleep`, `wake_up`, `update` and `generate` requests, without consecutive repetitions."""
    hangs: bool = False
    """While True, no request is answered."""
    most_at_once: int = 0
    """Maximum number of concurrent generations so far."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**30)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/update_weights", self._update)
        app.router.add_post("/sleep", self._note_path)
        app.router.add_post("/wake_up", self._note_path)
        self._updating = self._generating = 0
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True, backlog=4096)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        await self._until_well()
        return web.Response()

    async def _note_path(self, request: web.Request) -> web.Response:
        self._note(request.path.removeprefix("/"))
        return web.Response()

    def _note(self, event: str) -> None:
        if self.events[-1:] != [event]:
            self.events.append(event)

    async def _until_well(self) -> None:
        while self.hangs:
            await asyncio.sleep(0.01)

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": self.model, "object": "model", "max_model_len": self.max_model_len}
        return _json({"object": "list", "data": [card]})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await self._receive(request)
        self._note("generate")
        if self.failures:
            return _json({"error": "stub failure"}, status=self.failures.pop(0))
        params = body["sampling_params"]
        tokens = self.tokens(params.get("seed", 0), params.get("max_tokens", self.length))
        versions = await self._versions(len(tokens))
        logprob = -math.log(len(LETTERS))
        content = [self._entry(token, logprob) for token in tokens]
        choice = {
            "index": 0,
            "token_ids": tokens,
            "finish_reason": "stop" if tokens[-1] == END else "length",
            "logprobs": {"content": content},
        }
        answer = {
            "request_id": "stub",
            "choices": [choice],
            "prompt_logprobs": None,
            "weight_versions": versions,
        }
        return _json(answer)

    def tokens(self, seed: int, max_tokens: int) -> list[int]:
        """Return the answer to a request with this seed."""
        letters = random.Random(seed).choices(LETTERS, k=self.length - 1)
        return [*letters, END][:max_tokens]

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        name = {"token_id": token} if self.numeric_ids else {"token": f"token_id:{token}"}
        return {**name, "logprob": logprob, "top_logprobs": [{**name, "logprob": logprob}]}

    async def _versions(self, count: int) -> list[tuple[int, int]]:
        """Sample half of the tokens before and half after the latency, so that an update in between has an effect."""
        first = self.version
        self._generating += 1
        self.most_at_once = max(self.most_at_once, self._generating)
        try:
            await asyncio.sleep(self.latency)
            await self._until_well()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self._generating -= 1
        half = count // 2
        return [(first, count)] if first == self.version else [(first, half), (self.version, count - half)]

    async def _chat(self, request: web.Request) -> web.Response:
        body = await self._receive(request)
        message = {"role": "assistant", "content": f"seed {body.get('seed')}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return _json({"id": "stub", "object": "chat.completion", "model": self.model, "choices": [choice]})

    async def _update(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read())
        self.updates.append(body)
        self._note("update")
        self._updating += 1
        self.overlapping = max(self.overlapping, self._updating)
        await asyncio.sleep(self.update_seconds)
        self._updating -= 1
        self.version = body["version"]
        return _json({"version": self.version if self.acknowledges is None else self.acknowledges})

    async def _receive(self, request: web.Request) -> dict[str, Any]:
        body = msgspec.json.decode(await request.read())
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        return body


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
