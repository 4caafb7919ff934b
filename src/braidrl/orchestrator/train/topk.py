"""Heads: the sampler's most likely tokens at each sampled token, for score centering (`docs/losses.md`).

Heads are recovered from an engine's candidates when a model call completes, and assigned to the messages of a trace
when it is flattened. N is the number of sampled tokens, W the number of candidates, K the size of a head.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import Branch

from braidrl.configs.inference import HEAD_MARGIN


class TopK(NamedTuple):
    """Heads of N sampled tokens, most likely token first."""

    token_ids: NDArray[np.int32]
    """Token ids, i32[N, K], padded with -1."""
    logprobs: NDArray[np.float32]
    """Log-probs in the sampling distribution over the whole vocabulary, f32[N, K], padded with -inf."""


Heads = Mapping[bytes, TopK]
"""Heads of a trace's model calls, by `call_key`."""


class MissingHeadError(ValueError):
    """No head was captured for a token of the rl loss."""


def num_candidates(size: int) -> int:
    """Return the number of candidates to request from an engine to recover heads of `size` tokens."""
    return size + HEAD_MARGIN


def recover_head(token_ids_NW: np.ndarray, logprobs_NW: np.ndarray, size: int) -> TopK:
    """Return the `size` most likely distinct candidates that are strictly more likely than candidate `size` + 1.

    Candidates tied with candidate `size` + 1 are excluded, so that a head does not depend on how an engine breaks ties.
    A head may thus be shorter than `size`, or empty. With at most `size` candidates, all of them form the head.

    Args:
        token_ids_NW: int[N, W], in any order, padded with -1.
        logprobs_NW: float[N, W], padded with -inf.
    """
    ids, logprobs = _ranked(token_ids_NW, logprobs_NW)
    head_ids = np.full((len(ids), size), -1, np.int32)
    head_logprobs = np.full((len(ids), size), -np.inf, np.float32)
    best = logprobs[:, :size]
    following = logprobs[:, size : size + 1] if logprobs.shape[1] > size else np.float64(-np.inf)
    kept = best > following
    head_ids[:, : best.shape[1]][kept] = ids[:, :size][kept]
    head_logprobs[:, : best.shape[1]][kept] = best[kept]
    return TopK(head_ids, head_logprobs)


def call_key(token_ids: Sequence[int], logprobs: Sequence[float]) -> bytes:
    """Return the key of a model call. Calls with equal keys have equal heads.

    Args:
        token_ids: prompt and sampled tokens of the call.
        logprobs: log-probs of the sampled tokens. They distinguish calls with equal tokens but other policy versions.
    """
    return _key_of(_digest(token_ids), logprobs)


def node_keys(nodes: Iterable[MessageNode]) -> Iterator[bytes]:
    """Yield the `call_key` of each message of a path from the root.

    Prompt and sampled tokens of the call of a message are exactly the tokens of the path up to its end. The key of a
    message that was not sampled has no head.
    """
    digest = _digest(())
    for node in nodes:
        digest.update(_bytes(node.token_ids))
        yield _key_of(digest.copy(), node.logprobs)


def branch_head(branch: Branch, mask: np.ndarray, rl: np.ndarray, heads: Heads, trace_id: str) -> TopK | None:
    """Return the heads of the tokens in `mask`, in order, or None if no token is a member of rl.

    Args:
        mask: bool[T], sampled tokens of the sample, in whole messages.
        rl: float[T], weights of the rl component.

    Raises:
        MissingHeadError: a member of rl has no head.
    """
    if not (mask & (rl != 0)).any():
        return None
    parts: list[TopK | int] = []
    start = 0
    for node, key in zip(branch.nodes, node_keys(branch.nodes), strict=True):
        end = start + len(node.token_ids)
        positions = start + np.flatnonzero(mask[start:end])
        if len(positions):
            head = heads.get(key)
            members = positions[rl[positions] != 0]
            if head is None and len(members):
                raise _missing(trace_id, branch.index, int(members[0]), len(heads))
            parts.append(len(positions) if head is None else head)
        start = end
    return _joined(parts)


def _joined(parts: Sequence[TopK | int]) -> TopK:
    """Concatenate heads. An integer n represents n tokens outside the loss, with empty heads."""
    size = next(part.token_ids.shape[1] for part in parts if isinstance(part, TopK))
    filled = [part if isinstance(part, TopK) else _empty(part, size) for part in parts]
    if len(filled) == 1:
        return filled[0]
    return TopK(
        np.concatenate([part.token_ids for part in filled]),
        np.concatenate([part.logprobs for part in filled]),
    )


def _empty(count: int, size: int) -> TopK:
    return TopK(np.full((count, size), -1, np.int32), np.full((count, size), -np.inf, np.float32))


def _missing(trace_id: str, branch: int, token: int, captured: int) -> MissingHeadError:
    return MissingHeadError(
        f"trace {trace_id}, branch {branch}, token {token}: this sampled token is a member of the rl loss, but belongs "
        f"to none of the {captured} model calls whose heads were captured. Score centering requires the head of every "
        "token: the environment must call the gateway's /inference/v1/generate with the trace's own session, and must "
        "not change the token ids and log-probs of the response"
    )


def _ranked(token_ids_NW: np.ndarray, logprobs_NW: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct candidates, most likely first, in the input's precision.

    Each sort is skipped if it would change nothing, as for most engines.
    """
    ids, logprobs = token_ids_NW, logprobs_NW
    by_id = np.sort(ids, axis=1)
    if ((by_id[:, 1:] == by_id[:, :-1]) & (by_id[:, 1:] >= 0)).any():
        order = np.lexsort((-logprobs, ids))
        ids, logprobs = (np.take_along_axis(array, order, 1) for array in (ids, logprobs))
        repeated = np.zeros(ids.shape, bool)
        repeated[:, 1:] = ids[:, 1:] == ids[:, :-1]
        ids, logprobs = np.where(repeated, -1, ids), np.where(repeated, -np.inf, logprobs)
    if (logprobs[:, 1:] > logprobs[:, :-1]).any():
        order = np.argsort(-logprobs, axis=1, kind="stable")
        ids, logprobs = (np.take_along_axis(array, order, 1) for array in (ids, logprobs))
    return ids, logprobs


def _digest(token_ids: Sequence[int]) -> "hashlib.blake2b":
    return hashlib.blake2b(_bytes(token_ids), digest_size=16)


def _bytes(token_ids: Sequence[int]) -> bytes:
    return np.asarray(token_ids, "<i4").tobytes()


def _key_of(digest: "hashlib.blake2b", logprobs: Sequence[float]) -> bytes:
    digest.update(np.asarray(logprobs, "<f8").tobytes())
    return digest.digest()
