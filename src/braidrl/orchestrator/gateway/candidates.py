"""Candidates on their way through the gateway: taken out of an engine's answer, so that no environment carries them.

An engine spells them out for each token (`top_logprobs`), as vLLM does, or packs those of a whole answer into arrays
(`packed`), as the embedded engine does where the gateway asks for it.
"""

from typing import Any

import msgspec
import numpy as np

from braidrl.orchestrator.train.topk import TopK, call_key, num_candidates, recover_head

PACKED = {"X-Braid-Logprobs": "packed"}
"""Header that asks for arrays; a server that does not know it spells them out."""
TOLERANCE = 1e-3
"""By how much the probabilities of a whole distribution may miss 1."""


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
    body: bytes, prompt: list[int], size: int, shown: int | None
) -> tuple[bytes, dict[bytes, TopK]]:
    """(the answer as the caller would have got it, the heads of its tokens by the key of the call).

    Args:
        body: an answer of `/inference/v1/generate` to a request for `num_candidates(size)` candidates.
        prompt: its token ids.
        size: tokens of a head.
        shown: candidates that the caller itself asked for; None: no log-probs at all.

    Raises:
        ValueError: candidates are missing, or their values are no log-probs. (`msgspec.DecodeError` is one.)
    """
    answer = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    written = answer.get("choices", b"[]")
    choices = msgspec.json.decode(written, type=list[dict[str, msgspec.Raw]])
    heads: dict[bytes, TopK] = {}
    stripped: list[dict[str, Any]] = []
    for raw, choice in zip(choices, msgspec.json.decode(written, type=list[_CandidateChoice]), strict=True):
        content = choice.logprobs.content
        if len(content) != len(choice.token_ids):
            raise ValueError(f"{len(content)} log-probs for {len(choice.token_ids)} generated tokens")
        ids_NW, logprobs_NW = _arrays(choice.logprobs)
        logprobs = [_own(entry) for entry in content]
        head = recover_head(ids_NW, logprobs_NW, size)
        _check(ids_NW, logprobs_NW, head)
        heads[call_key([*prompt, *choice.token_ids], logprobs)] = head
        entries = None if shown is None else _shown(content, choice.token_ids, ids_NW, logprobs_NW, shown)
        stripped.append({**raw, "logprobs": entries})
    return msgspec.json.encode({**answer, "choices": stripped}), heads


def _own(entry: dict[str, msgspec.Raw]) -> float:
    """The log-prob of the sampled token."""
    return msgspec.json.decode(entry.get("logprob", b"null"), type=float)


def _arrays(logprobs: _Logprobs) -> tuple[np.ndarray, np.ndarray]:
    """int[N, W] and float[N, W], in the order of the answer, padded with -1 and -inf."""
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


def _check(ids_NW: np.ndarray, logprobs_NW: np.ndarray, head: TopK) -> None:
    """Raise `ValueError` unless each row holds what was asked for, or all that there is: a small vocabulary."""
    size = head.token_ids.shape[1]
    counts, mass = (ids_NW >= 0).sum(1), np.exp(logprobs_NW).sum(1)
    short = np.flatnonzero((counts <= size) & (mass < 1 - TOLERANCE))
    if short.size:
        raise ValueError(
            f"{counts[short[0]]} candidates for generated token {short[0]}, where {num_candidates(size)} were asked "
            f"for; serve the model with max_logprobs >= {num_candidates(size)}"
        )
    wrong = np.flatnonzero(np.isnan(mass) | (np.exp(head.logprobs).sum(1) > 1 + TOLERANCE))
    if wrong.size:
        raise ValueError(
            f"the candidates of generated token {wrong[0]} have a total probability of {mass[wrong[0]]:.4g}; they must "
            "be log-probs after temperature (vLLM: --logprobs-mode processed_logprobs)"
        )


def _shown(
    content: list[dict[str, msgspec.Raw]],
    token_ids: list[int],
    ids_NW: np.ndarray,
    logprobs_NW: np.ndarray,
    shown: int,
) -> dict[str, Any]:
    """The caller's own share: of each token the first `shown` candidates, and itself."""
    entries: list[dict[str, Any]] = []
    for entry, token, ids, logprobs in zip(
        content, token_ids, ids_NW[:, :shown].tolist(), logprobs_NW[:, :shown].tolist(), strict=True
    ):
        values = dict(zip(ids, logprobs))
        values.pop(-1, None)
        if shown:
            values[token] = _own(entry)
        named = [{"token": f"token_id:{other}", "logprob": value} for other, value in values.items()]
        entries.append({**entry, "top_logprobs": named})
    return {"content": entries}
