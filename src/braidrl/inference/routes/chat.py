"""`POST /v1/chat/completions`: the subset of OpenAI's route used by evaluation and judges."""

import time
from typing import Any
from uuid import uuid4

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from braidrl.inference.engines.request import Completion
from braidrl.inference.engines.sampling import SamplingParams
from braidrl.inference.routes.context import (
    CONTEXT,
    Context,
    Refused,
    check_length,
    check_model,
    complete,
    parse,
    reply,
)
from braidrl.inference.routes.generate import SamplingBody, logprob_entries


class ChatBody(BaseModel):
    """Request body with a conversation. Unknown keys are rejected; `user`, `metadata` and `store` are ignored."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str | None = None
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(-1, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0)
    stream: bool = False
    n: int = Field(1, ge=1, le=1)
    cache_salt: str | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None

    def params(self, max_logprobs: int) -> SamplingParams:
        """Convert to the engine's sampling parameters."""
        names = ("temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids")
        return SamplingBody(
            **{name: getattr(self, name) for name in names},
            max_tokens=self.max_completion_tokens or self.max_tokens,
            logprobs=self.top_logprobs,
        ).params(max_logprobs)


async def chat(request: web.Request) -> web.Response:
    """Generate one message that continues a conversation."""
    context = request.app[CONTEXT]
    body = await parse(request, ChatBody)
    if body.stream:
        raise Refused(
            400, "stream = true is not supported: this server returns complete messages; send stream = false"
        )
    check_model(context, body.model)
    prompt = _render(context, body)
    check_length(context, prompt)
    done = await complete(
        context,
        context.engine.request(
            prompt,
            body.params(context.config.max_logprobs),
            id=f"chatcmpl-{uuid4().hex}",
            salt=body.cache_salt or "",
            eos=not body.ignore_eos,
        ),
    )
    return reply(_response(context, body, done))


def _render(context: Context, body: ChatBody) -> list[int]:
    """Convert the conversation to token ids with the tokenizer's chat template."""
    if context.tokenizer.chat_template is None:
        raise Refused(
            400,
            f"the tokenizer of {context.config.model.path} has no chat template; use /inference/v1/generate",
        )
    try:
        return context.tokenizer.apply_chat_template(
            [_flat(message) for message in body.messages],
            tools=body.tools,
            add_generation_prompt=True,
            return_dict=False,
            **body.chat_template_kwargs,
        )
    except Exception as error:  # templates can raise any exception
        raise Refused(400, f"the chat template cannot render these messages: {error}") from error


def _flat(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its text parts joined into one string."""
    content = message.get("content")
    if not isinstance(content, list):
        return {**message, "content": content or ""}
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise Refused(400, f"content part {part!r:.80}: only parts of type text are supported")
    return {**message, "content": "".join(part["text"] for part in content)}


def _response(context: Context, body: ChatBody, done: Completion) -> dict[str, Any]:
    text = context.tokenizer.decode(done.completion, skip_special_tokens=True)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": done.finish_reason,
        "logprobs": {"content": logprob_entries(done, context.decode)} if body.logprobs else None,
    }
    prompt, completion = len(done.prompt), len(done.completion)
    return {
        "id": done.id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": context.config.model.path,
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        },
        "weight_versions": done.versions,
    }
