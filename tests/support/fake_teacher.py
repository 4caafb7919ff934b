"""A teacher server that scores prompts like vLLM, with configurable faults."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from transformers import AutoTokenizer

from braidrl.configs.algorithm import OPDConfig


@dataclass
class FakeTeacher:
    """Fake teacher. Attributes are read at each request, so tests may change them while it runs."""

    scores: Callable[[list[int]], list[float]] = lambda token_ids: [-0.25 * token for token in token_ids]
    """Function that returns the log-prob of every token of a prompt."""
    decode: Callable[[int], str] | None = None
    """Function that returns the text of a token. None if answers contain no texts."""
    tokenize: Callable[[str], list[int]] | None = None
    """Implementation of the tokenize route. None if the server does not have it."""
    has_generate: bool = True
    vocabulary: int = 10**6
    latency: float = 0.0
    failures: list[int] = field(default_factory=list)
    """HTTP statuses of the next answers, which fail."""
    edit: Callable[[dict[str, Any]], Any] = lambda answer: answer
    """Function applied to an answer before it is sent. A string is sent unchanged."""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Route and body of every scoring request."""
    headers: list[dict[str, str]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append((request.path, body))
        self.headers.append(dict(request.headers))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.latency)
        finally:
            self.at_once -= 1
        if self.failures:
            return web.json_response({"error": {"message": "not now"}}, status=self.failures.pop(0))
        if request.path == "/tokenize":
            return self._tokenize(body)
        if request.path == "/inference/v1/generate" and not self.has_generate:
            return web.json_response({"detail": "Not Found"}, status=404)
        return self._score(request.path, body)

    def _tokenize(self, body: dict[str, Any]) -> web.Response:
        if self.tokenize is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({"tokens": self.tokenize(body["prompt"])})

    def _score(self, path: str, body: dict[str, Any]) -> web.Response:
        token_ids = body.get("token_ids") or body["prompt"]
        if max(token_ids) >= self.vocabulary:
            message = f"token id {max(token_ids)} is outside the vocabulary"
            return web.json_response({"error": {"message": message}}, status=400)
        entries: list[Any] = [None]
        for token, logprob in list(zip(token_ids, self.scores(token_ids), strict=True))[1:]:
            own = {"logprob": logprob, "rank": 2}
            if self.decode is not None:
                own["decoded_token"] = self.decode(token)
            entries.append({str(token): own, "7000000": {"logprob": -0.01, "rank": 1}})
        if path == "/v1/completions":
            answer = self.edit({"choices": [{"index": 0, "text": "x", "prompt_logprobs": entries}]})
        else:
            answer = self.edit({"choices": [{"index": 0, "token_ids": [1]}], "prompt_logprobs": entries})
        if isinstance(answer, str):
            return web.Response(text=answer)
        return web.json_response(answer)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Address of the server, ending in `/v1`."""
        app = web.Application()
        for route in ("/inference/v1/generate", "/v1/completions", "/tokenize"):
            app.router.add_post(route, self.answer)
        async with TestServer(app, shutdown_timeout=0.1) as server:
            yield str(server.make_url("/v1"))


def policy(path: Path, url: str = "") -> SimpleNamespace:
    """Stub of the live policy as passed to algorithms."""
    return SimpleNamespace(url=url, api_key=None, policy=str(path))


def opd(url: str | list[str], **settings: Any) -> OPDConfig:
    return OPDConfig.model_validate(
        {"teacher": {"name": "teacher", "base_url": url}, "timeout": 5.0, **settings}
    )


def frozen_source(url: str) -> dict[str, Any]:
    return {"sampling": {"source": {"name": "teacher", "base_url": url}}}


def toy(path: Path, shift: int = 0) -> Callable[[int], str]:
    """Tokenizer with the ids of the policy's tokenizer, or with letters shifted by `shift`."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    return lambda token: tokenizer.decode([token + shift if 64 <= token < 80 else token])
