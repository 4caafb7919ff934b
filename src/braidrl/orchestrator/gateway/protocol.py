"""Fields of requests and answers that the gateway reads or rewrites. Everything else is forwarded as raw bytes."""

from typing import Any

import msgspec

from braidrl.configs.model import UNBENT, check_unbent
from braidrl.orchestrator.engines.weight_update import version_of
from braidrl.orchestrator.gateway.candidates import take_heads
from braidrl.orchestrator.gateway.sessions import Session, Spans
from braidrl.orchestrator.train.topk import TopK, num_candidates

UNUSED = ("routed_experts_prompt_start",)
"""Sampling parameters that verifiers adds and that no inference server reads."""


class RequestError(ValueError):
    """The gateway refuses a request (status 400)."""


class ModelRequest:
    """Body of a model call. Raises `RequestError` if it is not a JSON object with a `model`."""

    def __init__(self, body: bytes) -> None:
        try:
            self.fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            self.model = msgspec.json.decode(self.fields["model"], type=str)
            self.sampling = self._sampling()
        except KeyError:
            raise RequestError("the request has no `model`; name one that GET /v1/models lists") from None
        except msgspec.DecodeError as error:
            raise RequestError(f"the request is not a JSON object of the expected shape: {error}") from None

    def _sampling(self) -> dict[str, Any]:
        names = [name for name in ("temperature", "seed", "stream", *UNBENT) if name in self.fields]
        return {name: msgspec.json.decode(self.fields[name]) for name in names}

    def check(self, session: Session) -> None:
        """Raise `RequestError` for sampling that the trainer cannot replay."""
        if session.temperature is None:
            return
        try:
            check_unbent(self.sampling)
        except ValueError as error:
            raise RequestError(str(error)) from None
        temperature = self.sampling.get("temperature", 1.0)
        if temperature != session.temperature:
            raise RequestError(
                f"temperature={temperature!r} differs from {session.temperature!r}, at which the trainer computes "
                "log-probs; remove it from the request and set sampling.temperature of the source"
            )

    def limit(self, context: int | None) -> None:
        """Cap the answer by the context length. Does nothing here, where the server renders the prompt."""

    def spans(self, body: bytes, version: int | None) -> Spans:
        """Return the policy versions of the tokens of an answer; empty if the answer has no token ids."""
        return []

    def encode(self, seed: int | None, salt: str | None, head_size: int | None = None) -> bytes:
        """Return the body to forward.

        Args:
            seed: replaces the seed of the request; None to keep it.
            salt: separates the prefix caches of policy versions.
            head_size: size of the heads to request candidates for, if the answer has token ids.
        """
        return self._encode({} if seed is None else {"seed": seed}, salt)

    def take_heads(self, body: bytes, size: int | None) -> tuple[bytes, dict[bytes, TopK]]:
        """Return an answer without the candidates that only the gateway requested, and the heads recovered from them.

        There are no heads if the answer has no token ids. Raises `ValueError` if candidates are missing.
        """
        return body, {}

    def _encode(self, changes: dict[str, Any], salt: str | None) -> bytes:
        if salt is not None:
            changes = {**changes, "cache_salt": salt}
        return msgspec.json.encode({**self.fields, **changes})


class GenerateRequest(ModelRequest):
    """Body of `POST /inference/v1/generate`: token ids in, token ids out."""

    def _sampling(self) -> dict[str, Any]:
        self.prompt = msgspec.json.decode(self.fields.get("token_ids", b"[]"), type=list[int])
        params = msgspec.json.decode(self.fields.get("sampling_params", b"{}"), type=dict[str, Any])
        return {name: value for name, value in params.items() if name not in UNUSED}

    def limit(self, context: int | None) -> None:
        """Cap `max_tokens` so that prompt and answer fit the context. Raises `RequestError` if the prompt fills it."""
        if context is None:
            return
        room = context - len(self.prompt)
        if room < 1:
            raise RequestError(
                f"the prompt of {len(self.prompt)} tokens leaves no room for an answer in the maximum "
                f"context length of {context} tokens; shorten the prompt, or raise seq_len"
            )
        requested = self.sampling.get("max_tokens")
        self.sampling["max_tokens"] = room if requested is None else min(requested, room)

    def spans(self, body: bytes, version: int | None) -> Spans:
        return read_spans(body, version)

    def encode(self, seed: int | None, salt: str | None, head_size: int | None = None) -> bytes:
        sampling = self.sampling if seed is None else {**self.sampling, "seed": seed}
        if head_size is not None:
            candidates = max(num_candidates(head_size), self.sampling.get("logprobs") or 0)
            sampling = {**sampling, "logprobs": candidates}
        return self._encode({"sampling_params": sampling}, salt)

    def take_heads(self, body: bytes, size: int | None) -> tuple[bytes, dict[bytes, TopK]]:
        if size is None:
            return body, {}
        return take_heads(body, self.prompt, size, self.sampling.get("logprobs"))


class _LabelledSpan(msgspec.Struct):
    """Span of generated tokens as vLLM reports it.

    `version` is Braid's label of a weight update, or vLLM's own label of the initial weights.
    """

    version: str
    start: int
    end: int


class _GenerateChoice(msgspec.Struct):
    token_ids: list[int] = []
    weight_versions: list[_LabelledSpan] | None = None


class _GenerateAnswer(msgspec.Struct):
    weight_versions: Spans | None = None
    choices: list[_GenerateChoice] = []

    def spans(self) -> Spans | None:
        """Return the spans of all choices, or None if the engine does not report them."""
        if self.weight_versions is not None or any(choice.weight_versions is None for choice in self.choices):
            return self.weight_versions
        labelled = (span for choice in self.choices for span in choice.weight_versions or ())
        return [(version_of(span.version), span.end - span.start) for span in labelled]


def read_spans(body: bytes, version: int | None) -> Spans:
    """Return the policy versions of the generated tokens; all `version` if the engine does not report them.

    Raises `ValueError` if the reported spans do not cover the generated tokens exactly.
    """
    if version is None:
        return []
    answer = msgspec.json.decode(body, type=_GenerateAnswer)
    count = sum(len(choice.token_ids) for choice in answer.choices)
    if (spans := answer.spans()) is None:
        return [(version, count)]
    if (reported := sum(span[1] for span in spans)) != count:
        raise ValueError(f"weight_versions {spans} cover {reported} tokens, but {count} were generated")
    return spans


def translate_answer(body: bytes) -> bytes:
    """Convert token ids to the format that renderers read: vLLM's `"token_id": N` to `"token": "token_id:N"`."""
    if b'"token_id":' not in body:  # spares decoding most answers
        return body
    answer = msgspec.json.decode(body)
    for choice in answer.get("choices") or []:
        for entry in (choice.get("logprobs") or {}).get("content") or []:
            for candidate in (entry, *(entry.get("top_logprobs") or [])):
                if (token_id := candidate.pop("token_id", None)) is not None:
                    candidate["token"] = f"token_id:{token_id}"
    return msgspec.json.encode(answer)
