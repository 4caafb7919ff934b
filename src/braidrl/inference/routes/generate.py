"""`POST /inference/v1/generate`: takes token ids, returns token ids and log-probs."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import numpy as np
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, StrictInt

from braidrl.inference.engines.request import Completion, Score
from braidrl.inference.engines.sampling import Candidates, SamplingParams
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

PACKED = ("X-Braid-Logprobs", "packed")
"""Request header that asks for candidates as arrays. Servers without support for it return them as JSON objects."""


class SamplingBody(BaseModel):
    """Sampling parameters with vLLM's names.

    Parameters that the engine does not support are accepted only with their neutral value. Parameters of text output
    are ignored, because this route returns no text.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(-1, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    stop_token_ids: list[int] | None = None
    seed: int | None = None
    logprobs: int | None = Field(None, ge=0)
    prompt_logprobs: int | None = Field(None, ge=0)
    ignore_eos: bool = False
    n: int = Field(1, ge=1, le=1)
    min_tokens: int = Field(0, ge=0, le=0)
    presence_penalty: float = Field(0, ge=0, le=0)
    frequency_penalty: float = Field(0, ge=0, le=0)
    repetition_penalty: float = Field(1, ge=1, le=1)
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    detokenize: bool = True
    include_stop_str_in_output: bool = False

    def params(self, max_logprobs: int) -> SamplingParams:
        """Convert to the engine's parameters. Raises `Refused` for more candidates than the server allows."""
        for name, wanted in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if wanted is not None and wanted > max_logprobs:
                raise Refused(
                    400,
                    f"{name} = {wanted}; this server returns at most {max_logprobs}; ask for fewer or raise "
                    "max_logprobs",
                )
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            max_tokens=self.max_tokens,
            stop_token_ids=frozenset(self.stop_token_ids or ()),
            seed=self.seed,
            logprobs=self.logprobs or 0,
            prompt_logprobs=self.prompt_logprobs,
        )


class GenerateBody(BaseModel):
    """Request body with a prompt as token ids. `priority` is ignored."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    token_ids: list[StrictInt]
    sampling_params: SamplingBody = Field(default_factory=lambda: SamplingBody.model_validate({}))
    cache_salt: str | None = None
    priority: int = 0
    request_id: str | None = None


async def generate(request: web.Request) -> web.Response:
    """Sample one completion."""
    context = request.app[CONTEXT]
    body = await parse(request, GenerateBody)
    check_model(context, body.model)
    check_length(context, body.token_ids)
    sampling = body.sampling_params
    done = await complete(
        context,
        context.engine.request(
            body.token_ids,
            sampling.params(context.config.max_logprobs),
            id=body.request_id or f"generate-{uuid4().hex}",
            salt=body.cache_salt or "",
            eos=not sampling.ignore_eos,
        ),
    )
    packed = request.headers.get(PACKED[0]) == PACKED[1]
    logprobs = None if sampling.logprobs is None else choice_logprobs(done, packed)
    return reply(generate_response(context, done, logprobs))


def choice_logprobs(done: Completion, packed: bool) -> dict[str, Any]:
    """Return one entry named `token_id:N` per generated token, with its candidates or, if `packed`, next to them."""

    def name(token: int) -> str:
        return f"token_id:{token}"

    if not packed:
        return {"content": logprob_entries(done, name)}
    entries = [
        {"token": name(token), "logprob": logprob, "top_logprobs": []}
        for token, logprob in zip(done.completion, done.logprobs)
    ]
    return {"content": entries, "packed": pack_candidates(done.candidates)}


def pack_candidates(candidates: Sequence[Candidates]) -> dict[str, Any]:
    """Pack the candidates of N tokens as `{width: W, token_ids: i32[N, W], logprobs: f32[N, W]}`.

    Arrays are little-endian bytes (base64 in JSON), best candidate first, padded with -1 and -inf.
    """
    width = max((len(found.token_ids) for found in candidates), default=0)
    ids = np.full((len(candidates), width), -1, "<i4")
    logprobs = np.full((len(candidates), width), -np.inf, "<f4")
    for row, found in enumerate(candidates):
        ids[row, : len(found.token_ids)] = found.token_ids
        logprobs[row, : len(found.token_ids)] = found.logprobs
    return {"width": width, "token_ids": ids.tobytes(), "logprobs": logprobs.tobytes()}


def generate_response(context: Context, done: Completion, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    """Return the response for a finished request in vLLM's format."""
    choice = {
        "index": 0,
        "token_ids": done.completion,
        "finish_reason": done.finish_reason,
        "logprobs": logprobs,
    }
    return {
        "request_id": done.id,
        "choices": [choice],
        "prompt_logprobs": prompt_logprobs(context, done),
        "weight_versions": done.versions,
    }


def logprob_entries(done: Completion, name: Any) -> list[dict[str, Any]]:
    """Return one entry per generated token: its log-prob and its candidates, which always include the token itself."""
    entries = []
    for token, logprob, candidates in zip(done.completion, done.logprobs, done.candidates):
        ids = candidates.token_ids.tolist()
        named = [
            {"token": name(other), "logprob": value}
            for other, value in zip(ids, candidates.logprobs.tolist())
        ]
        if ids and token not in ids:
            named.append({"token": name(token), "logprob": logprob})
        entries.append({"token": name(token), "logprob": logprob, "top_logprobs": named})
    return entries


def prompt_logprobs(context: Context, done: Completion) -> list[dict[str, Any] | None] | None:
    """Return prompt log-probs in vLLM's format, one entry per prompt token.

    The first is null, the others are `{token id: {logprob, rank, decoded_token}}`. None if they were not requested.
    """
    if done.params.prompt_logprobs is None:
        return None
    return [None, *(_scored(context, scores) for scores in done.scores)]


def _scored(context: Context, scores: list[Score]) -> dict[str, Any]:
    return {
        str(token): {"logprob": logprob, "rank": rank, "decoded_token": context.decode(token)}
        for token, logprob, rank in scores
    }
