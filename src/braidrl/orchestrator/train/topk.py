"""Heads: the sampler's most likely tokens at each sampled one, for losses that centre their scores.

They are recovered from an engine's candidates when a model call is answered, and joined with the messages of the trace
when it is flattened. N is a number of sampled tokens, W of candidates, K the size of a head.
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
    """Of N sampled tokens, best first."""

    token_ids: NDArray[np.int32]
    """i32[N, K]; -1 pads."""
    logprobs: NDArray[np.float32]
    """f32[N, K] in the distribution, over the whole vocabulary, that was sampled from; -inf pads."""


Heads = Mapping[bytes, TopK]
"""The heads of one trace's model calls, by `call_key`."""


class MissingHeadError(ValueError):
    """A token of the rl loss whose head was not captured."""


def num_candidates(size: int) -> int:
    """What to ask an engine for, so that heads of `size` can be recovered."""
    return size + HEAD_MARGIN


def recover_head(token_ids_NW: np.ndarray, logprobs_NW: np.ndarray, size: int) -> TopK:
    """The best `size` distinct candidates that are strictly above the next one (SPEC section 2, "Head recovery").

    A tie at the boundary leaves the tied tokens out, so that the head does not depend on how an engine breaks ties; so
    it may be shorter than `size`, and empty. Where there are `size` candidates or fewer, all of them are the head.

    Args:
        token_ids_NW: int[N, W], in any order; -1 pads.
        logprobs_NW: float[N, W]; -inf at pads.
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
    """Names a model call by all that it was about: `token_ids` is its prompt and what it sampled, `logprobs` those of
    what it sampled. Calls that agree in both sampled from one distribution, so their heads are the same."""
    return _name(_digest(token_ids), logprobs)


def node_keys(nodes: Iterable[MessageNode]) -> Iterator[bytes]:
    """`call_key` of the call that sampled each message of a path from the root: the tokens of the path up to its end
    are exactly those that the model saw and sampled. (A message that no call sampled has a key without a head.)"""
    digest = _digest(())
    for node in nodes:
        digest.update(_bytes(node.token_ids))
        yield _name(digest.copy(), node.logprobs)


def branch_head(branch: Branch, mask: np.ndarray, rl: np.ndarray, heads: Heads, trace_id: str) -> TopK | None:
    """The heads of the tokens at `mask`, in order; None where no token is a member of rl.

    Args:
        mask: bool[T], whole messages of sampled tokens.
        rl: float[T], the weights of the rl component.

    Raises:
        MissingHeadError: a member of rl, at `mask` with a weight, has no head.
    """
    if not (mask & (rl != 0)).any():
        return None
    found: list[TopK | int] = []
    start = 0
    for node, key in zip(branch.nodes, node_keys(branch.nodes), strict=True):
        end = start + len(node.token_ids)
        positions = start + np.flatnonzero(mask[start:end])
        if len(positions):
            head = heads.get(key)
            members = positions[rl[positions] != 0]
            if head is None and len(members):
                raise _missing(trace_id, branch.index, int(members[0]), len(heads))
            found.append(len(positions) if head is None else head)
        start = end
    return _joined(found)


def _joined(found: Sequence[TopK | int]) -> TopK:
    """Heads end to end; a number stands for so many tokens outside the loss, whose heads are empty."""
    size = next(part.token_ids.shape[1] for part in found if isinstance(part, TopK))
    filled = [part if isinstance(part, TopK) else _empty(part, size) for part in found]
    if len(filled) == 1:
        return filled[0]
    return TopK(
        np.concatenate([part.token_ids for part in filled]),
        np.concatenate([part.logprobs for part in filled]),
    )


def _empty(count: int, size: int) -> TopK:
    nothing = np.full((count, size), -np.inf, np.float32)
    return TopK(np.full((count, size), -1, np.int32), nothing)


def _missing(trace_id: str, branch: int, token: int, captured: int) -> MissingHeadError:
    return MissingHeadError(
        f"trace {trace_id}, branch {branch}, token {token}: this sampled token is a member of the rl loss, but it is "
        f"of none of the {captured} model calls whose heads were captured for the trace; score centering needs every "
        "head. The environment must call the gateway's /inference/v1/generate under the trace's own session, and leave "
        "token ids and log-probs of the answer as they are"
    )


def _ranked(token_ids_NW: np.ndarray, logprobs_NW: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct candidates, best first, in the input's own precision. Engines mostly send them so already."""
    ids, logprobs = token_ids_NW, logprobs_NW
    by_id = np.sort(ids, axis=1)
    if ((by_id[:, 1:] == by_id[:, :-1]) & (by_id[:, 1:] >= 0)).any():
        order = np.lexsort((-logprobs, ids))
        ids, logprobs = (np.take_along_axis(array, order, 1) for array in (ids, logprobs))
        again = np.zeros(ids.shape, bool)
        again[:, 1:] = ids[:, 1:] == ids[:, :-1]
        ids, logprobs = np.where(again, -1, ids), np.where(again, -np.inf, logprobs)
    if (logprobs[:, 1:] > logprobs[:, :-1]).any():
        order = np.argsort(-logprobs, axis=1, kind="stable")
        ids, logprobs = (np.take_along_axis(array, order, 1) for array in (ids, logprobs))
    return ids, logprobs


def _digest(token_ids: Sequence[int]) -> "hashlib.blake2b":
    return hashlib.blake2b(_bytes(token_ids), digest_size=16)


def _bytes(token_ids: Sequence[int]) -> bytes:
    return np.asarray(token_ids, "<i4").tobytes()


def _name(digest: "hashlib.blake2b", logprobs: Sequence[float]) -> bytes:
    digest.update(np.asarray(logprobs, "<f8").tobytes())
    return digest.digest()
