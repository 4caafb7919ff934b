"""Shared code of the routes: server state, JSON responses, error handling, request checks."""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from pydantic import BaseModel, ValidationError

from braidrl.configs.inference import InferenceConfig
from braidrl.inference.engines.request import Completion
from braidrl.inference.engines.torch import EngineClosed, TorchEngine

logger = logging.getLogger(__name__)

Body = TypeVar("Body", bound=BaseModel)


@dataclass
class Context:
    """State of one server: engine, tokenizer (None until loaded) and API key."""

    config: InferenceConfig
    engine: TorchEngine
    api_key: str | None = None
    tokenizer: Any = None
    decoded: dict[int, str] = field(default_factory=dict)

    @property
    def loaded(self) -> bool:
        return self.tokenizer is not None and self.engine.loaded.done() and not self.engine.ended.done()

    def decode(self, token: int) -> str:
        """Return the text of one token."""
        if token not in self.decoded:
            self.decoded[token] = self.tokenizer.decode([token])
        return self.decoded[token]


CONTEXT = web.AppKey("context", Context)


def reply(payload: Any, status: int = 200) -> web.Response:
    """Create a JSON response."""
    return web.Response(body=msgspec.json.encode(payload), status=status, content_type="application/json")


def refuse(status: int, message: str) -> web.Response:
    """Create a JSON error in OpenAI's format."""
    return reply({"error": {"message": message, "type": "error", "code": status}}, status)


class Refused(Exception):
    """Raised for a request that is rejected, with the HTTP status and the message for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@web.middleware
async def errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> Any:
    """Check the API key, reject requests until the model is loaded, and return every error as JSON."""
    context = request.app[CONTEXT]
    try:
        if request.path != "/health":
            _authorise(context, request)
            if not context.loaded:
                raise Refused(503, "the model is not loaded (yet); wait until GET /health returns 200")
        return await handler(request)
    except Refused as error:
        return refuse(error.status, str(error))
    except web.HTTPException as error:
        return refuse(error.status, f"{request.method} {request.path}: {error.reason}")
    except EngineClosed as error:
        return refuse(503, str(error))
    except Exception as error:
        logger.exception("%s %s failed", request.method, request.path)
        return refuse(500, f"{type(error).__name__}: {error}")


async def parse(request: web.Request, cls: type[Body]) -> Body:
    """Parse the JSON body as `cls`. Raises `Refused` with every validation error."""
    try:
        return cls.model_validate(msgspec.json.decode(await request.read()))
    except msgspec.DecodeError as error:
        raise Refused(400, f"the body is not JSON: {error}") from error
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']} (seen: {e['input']!r:.80})"
            for e in error.errors()
        ]
        raise Refused(400, "; ".join(faults)) from error


def check_model(context: Context, model: str | None) -> None:
    """Raise `Refused` for a model that this server does not have."""
    if model is not None and model != context.config.model.path:
        raise Refused(
            404, f"the model `{model}` does not exist; this server has `{context.config.model.path}`"
        )


def check_length(context: Context, prompt: list[int]) -> None:
    """Raise `Refused` for a prompt that is empty, has ids outside the vocabulary, or fills the whole context."""
    limit, vocabulary = context.config.seq_len, context.engine.model.vocab_size
    if not prompt:
        raise Refused(400, "the prompt has no tokens; at least 1 is required")
    if len(prompt) >= limit:
        raise Refused(
            400,
            f"This model's maximum context length is {limit} tokens. The prompt has {len(prompt)}; "
            f"at most {limit - 1} leave room for a completion. Shorten it or raise seq_len (max_model_len).",
        )
    wrong = next((token for token in (min(prompt), max(prompt)) if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise Refused(400, f"token id {wrong} is outside the vocabulary; 0 to {vocabulary - 1} is required")


async def complete(context: Context, request: Completion) -> Completion:
    """Run a request to completion. If the client disconnects, this is cancelled and the engine drops the request."""
    return await asyncio.wrap_future(context.engine.submit(request))


def _authorise(context: Context, request: web.Request) -> None:
    if context.api_key is None:
        return
    sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(sent.encode(), context.api_key.encode()):
        raise Refused(401, "the API key is missing or wrong; send `Authorization: Bearer KEY`")
