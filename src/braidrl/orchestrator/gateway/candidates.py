"""Extraction of candidates (most likely tokens) from an engine's answer, so that environments do not carry them.

An engine lists candidates per token (`top_logprobs`), as vLLM does, or packs those of a whole answer into arrays
(`packed`), as the embedded engine does if the gateway requests it.
"""

from typing import Any

import msgspec
import numpy as np

from braidrl.orchestrator.train.topk import TopK, call_key, num_candidates, recover_head

PACKED = {"X-Braid-Logprobs": "packed"}
"""Header that requests packed arrays. Servers without support for it ignore it and send `top_logprobs`."""
TOLERANCE = 1e-3
"""Maximum deviation from 1 of the sum of all probabilities of a distribution."""


class _Packed(msgspec.Struct):
    width: int
    token_ids: bytes
    logprobs: bytes


class _Candidate(msgspec.Struct):
    logprob: float
    token: str = ""
    token_id: int | None = None

    @property
    def id(self) -> int:
        return int(self.token.removeprefix("token_id:")) if self.token_id is None else self.token_id


class _Logprobs(msgspec.Struct):
    content: list[dict[str, msgspec.Raw]]
    packed: _Packed | None = None


class _CandidateChoice(msgspec.Struct):
    token_ids: list[int]
    logprobs: _Logprobs


def take_heads(
    body: bytes, prompt: list[int], size: int, requested: int | None
) -> tuple[bytes, dict[bytes, TopK]]:
    """Return the answer with only the candidates the caller requested, and the heads of its tokens by `call_key`.

    Args:
        body: answer of `/inference/v1/generate` to a request for `num_candidates(size)` candidates.
        prompt: token ids of the prompt.
        size: number of tokens of a head.
        requested: number of candidates that the caller requested; None if it requested no log-probs.

    Raises:
        ValueError: candidates are missing, or their values are not log-probs (includes `msgspec.DecodeError`).
    """
    answer = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    raw_choices = answer.get("choices", b"[]")
    choices = msgspec.json.decode(raw_choices, type=list[dict[str, msgspec.Raw]])
    heads: dict[bytes, TopK] = {}
    stripped: list[dict[str, Any]] = []
    for raw, choice in zip(
        choices, msgspec.json.decode(raw_choices, type=list[_CandidateChoice]), strict=True
    ):
        content = choice.logprobs.content
        if len(content) != len(choice.token_ids):
            raise ValueError(f"{len(content)} log-probs for {len(choice.token_ids)} generated tokens")
        ids_NW, logprobs_NW = _arrays(choice.logprobs)
        logprobs = [_sampled_logprob(entry) for entry in content]
        head = recover_head(ids_NW, logprobs_NW, size)
        _check_candidates(ids_NW, logprobs_NW, head)
        heads[call_key([*prompt, *choice.token_ids], logprobs)] = head
        entries = None
        if requested is not None:
            entries = _requested_entries(content, choice.token_ids, ids_NW, logprobs_NW, requested)
        stripped.append({**raw, "logprobs": entries})
    return msgspec.json.encode({**answer, "choices": stripped}), heads


def _sampled_logprob(entry: dict[str, msgspec.Raw]) -> float:
    """Return the log-prob of the sampled token."""
    return msgspec.json.decode(entry.get("logprob", b"null"), type=float)


def _arrays(logprobs: _Logprobs) -> tuple[np.ndarray, np.ndarray]:
    """Return candidate ids int[N, W] and log-probs float[N, W] in the order of the answer, padded with -1 and -inf."""
    if (packed := logprobs.packed) is not None:
        shape = len(logprobs.content), packed.width
        return (
            np.frombuffer(packed.token_ids, "<i4").reshape(shape),
            np.frombuffer(packed.logprobs, "<f4").reshape(shape),
        )
    rows = [
        msgspec.json.decode(entry.get("top_logprobs", b"[]"), type=list[_Candidate])
        for entry in logprobs.content
    ]
    shape = len(rows), max(map(len, rows), default=0)
    ids_NW, logprobs_NW = np.full(shape, -1, np.int32), np.full(shape, -np.inf)
    for index, row in enumerate(rows):
        ids_NW[index, : len(row)] = [candidate.id for candidate in row]
        logprobs_NW[index, : len(row)] = [candidate.logprob for candidate in row]
    return ids_NW, logprobs_NW


def _check_candidates(ids_NW: np.ndarray, logprobs_NW: np.ndarray, head: TopK) -> None:
    """Raise `ValueError` if a row has too few candidates or its values are not log-probs.

    A row may be short if it is a whole distribution, i.e. the vocabulary is small: its probabilities then sum to 1.
    """
    size = head.token_ids.shape[1]
    counts, mass = (ids_NW >= 0).sum(1), np.exp(logprobs_NW).sum(1)
    short = np.flatnonzero((counts <= size) & (mass < 1 - TOLERANCE))
    if short.size:
        raise ValueError(
            f"{counts[short[0]]} candidates for generated token {short[0]}, but {num_candidates(size)} were requested; "
            f"serve the model with max_logprobs >= {num_candidates(size)}"
        )
    wrong = np.flatnonzero(np.isnan(mass) | (np.exp(head.logprobs).sum(1) > 1 + TOLERANCE))
    if wrong.size:
        raise ValueError(
            f"the candidates of generated token {wrong[0]} have a total probability of {mass[wrong[0]]:.4g}, but their "
            "values must be log-probs after temperature; serve vLLM with --logprobs-mode processed_logprobs"
        )


def _requested_entries(
    content: list[dict[str, msgspec.Raw]],
    token_ids: list[int],
    ids_NW: np.ndarray,
    logprobs_NW: np.ndarray,
    requested: int,
) -> dict[str, Any]:
    """Return the log-probs for the caller: for each token its first `requested` candidates and the sampled token."""
    entries: list[dict[str, Any]] = []
    for entry, token, ids, logprobs in zip(
        content, token_ids, ids_NW[:, :requested].tolist(), logprobs_NW[:, :requested].tolist(), strict=True
    ):
        values = dict(zip(ids, logprobs))
        values.pop(-1, None)  # padding
        if requested:
            values[token] = _sampled_logprob(entry)
        top = [{"token": f"token_id:{token_id}", "logprob": value} for token_id, value in values.items()]
        entries.append({**entry, "top_logprobs": top})
    return {"content": entries}
