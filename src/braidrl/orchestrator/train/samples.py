"""Flattening of a trace's message graph to training samples, one per trainable branch (`docs/trajectories.md`)."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec
import numpy as np
from verifiers.v1 import Trace
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import Branch

from braidrl.orchestrator.train.topk import Heads, branch_head
from braidrl.transport.types import TrainingSample

RL, CE, REF_KL = "rl", "ce", "ref_kl"
"""Keys of the weight streams in `node.loss_weights`, one per loss component."""


@dataclass
class Flattened:
    """Result of flattening one trace."""

    samples: list[TrainingSample] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """Number of refused traces or branches by reason. A stream that does not match the tokens (`misaligned_...`,
    `missing_...`, `nonfinite_...`) refuses the whole trace, `too_long` a branch."""


def flatten_trace(
    trace: Trace,
    *,
    seq_len: int,
    temperature: float = 1.0,
    env: str = "",
    group_id: str = "",
    episode_id: str = "",
    versions: Sequence[int] = (),
    heads: Heads | None = None,
) -> Flattened:
    """Flatten an annotated trace to training samples.

    A message shared by several branches is context in all of them, but trains only in the first, so that each sampled
    token counts once. A refused compaction does not train, but the turns before it do.

    Args:
        trace: annotated by its algorithm (`node.advantages`, `node.reference_logprobs`, `node.loss_weights`).
        seq_len: maximum length of a sample, in tokens. Longer branches are refused.
        temperature: sampling temperature.
        env, group_id, episode_id: values of these fields of the samples.
        versions: policy version of every sampled token, in node order. If their number does not match the graph, every
            sample spans all versions, which can only overestimate its staleness. Empty for a frozen source: version 0.
        heads: captured heads of the trace's model calls by `call_key`, or None if the loss needs no heads.

    Raises:
        MissingHeadError: a token of the rl loss has no captured head, and `heads` is not None.
    """
    result = _cut(trace, seq_len, versions, heads)
    for sample in result.samples:
        sample.temperature, sample.env, sample.agent = temperature, env, trace.agent.name
        sample.group_id, sample.episode_id, sample.trace_id = group_id, episode_id, trace.id
        sample.reward = trace.reward
    return result


def token_versions(trace: Trace, calls: Iterable[Sequence[tuple[int, int]]]) -> list[int]:
    """Return the policy version of every sampled token of a trace, in node order.

    Messages are matched to calls by length: each sampled message takes the first unused call with the same number of
    tokens. Messages may be in a different order from calls if agents work concurrently, and the response of a call may
    have been discarded. If a message matches no call, returns the versions of all calls in call order.

    Args:
        calls: `(version, number of tokens)` spans of each completed call, in call order.
    """
    unused = [[version for version, count in spans for _ in range(count)] for spans in calls]
    in_call_order = list(chain.from_iterable(unused))
    versions: list[int] = []
    for node in trace.nodes:
        if not (count := sum(node.mask)):
            continue
        call = next((number for number, call in enumerate(unused) if len(call) == count), None)
        if call is None:
            return in_call_order
        versions += unused.pop(call)
    return versions


def drop_zero_signal(sample: TrainingSample) -> TrainingSample | None:
    """Remove sampled tokens with advantage 0 from the rl component. Returns None if no token is left to train.

    Samples with ce or ref_kl weights are kept. `rl_weights` becomes None if it equals `mask`, and the heads become None
    if no token is left in rl, so that they are not sent.
    """
    rl = sample.mask.astype(np.float32) if sample.rl_weights is None else sample.rl_weights
    signal = np.zeros_like(sample.mask) if sample.advantages is None else sample.advantages != 0
    rl = np.where(sample.mask & signal, rl, np.float32(0))
    if not (rl.any() or _any(sample.ce_weights) or _any(sample.ref_kl_weights)):
        return None
    weights = None if np.array_equal(rl, sample.mask) else rl
    if rl.any():
        return msgspec.structs.replace(sample, rl_weights=weights)
    return msgspec.structs.replace(sample, rl_weights=weights, head_ids=None, head_logprobs=None)


def _cut(trace: Trace, seq_len: int, versions: Sequence[int], heads: Heads | None) -> Flattened:
    """Return the samples of a trace with their streams, heads and policy versions (see `flatten_trace`)."""
    result = Flattened()
    if reason := _misaligned(trace):
        result.refused[reason] += 1
        return result
    spans = _version_spans(trace, versions)
    trained: set[int] = set()
    for branch in _trainable(trace):
        sample = _flatten_branch(branch, trained)
        if sample is None:
            continue
        if len(sample.token_ids) > seq_len:
            result.refused["too_long"] += 1
            continue
        own = [spans[id(node)] for node in branch.nodes if id(node) in spans]
        if heads is not None:
            _attach_head(sample, branch, heads, trace.id)
        trained.update(id(node) for node in branch.nodes)
        sample.version_start = min((start for start, _ in own), default=0)
        sample.version_end = max((end for _, end in own), default=0)
        result.samples.append(sample)
    return result


def _trainable(trace: Trace) -> list[Branch]:
    """Return the trainable branches, then the turns before a refused compaction (verifiers marks the whole branch)."""
    branches = trace.branches
    cut = [
        branch.model_copy(update={"nodes": branch.nodes[:end]})
        for branch in branches
        if not branch.trainable and (end := _turns_before_compaction(branch))
    ]
    return [branch for branch in branches if branch.trainable] + cut


def _turns_before_compaction(branch: Branch) -> int:
    """Return the number of nodes up to the last turn of a branch that does not attempt a compaction."""
    turns = (
        end
        for end, node in enumerate(branch.nodes, start=1)
        if node.sampled and all(link.type != "compaction_attempt" for link in node.semantic_parents)
    )
    return max(turns, default=0)


def _attach_head(sample: TrainingSample, branch: Branch, heads: Heads, trace_id: str) -> None:
    """Set the heads of a sample's sampled tokens, if any of them is a member of rl."""
    rl = sample.mask if sample.rl_weights is None else sample.rl_weights
    if (head := branch_head(branch, sample.mask, rl, heads, trace_id)) is not None:
        sample.head_ids, sample.head_logprobs = head


def _flatten_branch(branch: Branch, trained: set[int]) -> TrainingSample | None:
    """Flatten a branch, with streams of 0 on nodes in `trained`. Returns None if no token is left to train."""
    nodes = branch.nodes
    fresh = np.repeat([id(node) not in trained for node in nodes], [len(node.token_ids) for node in nodes])
    sampled = np.array(branch.sampled_mask, dtype=bool)
    mask = sampled & fresh
    ce, ref_kl = (_weights(branch, name, fresh) for name in (CE, REF_KL))
    if not (mask.any() or _any(ce)):
        return None

    def stream_of(values: Callable[[MessageNode], list[float] | None]) -> np.ndarray:
        stream = np.zeros(len(sampled), dtype=np.float32)
        stream[sampled] = [value for node in nodes for value in values(node) or [0.0] * sum(node.mask)]
        return np.where(mask, stream, np.float32(0))

    assigned = any(node.advantages is not None for node in nodes)
    scored = any(node.reference_logprobs is not None for node in nodes)
    return TrainingSample(
        token_ids=np.array(branch.token_ids, dtype=np.int32),
        mask=mask,
        sampling_logprobs=stream_of(lambda node: node.logprobs),
        advantages=stream_of(lambda node: node.advantages) if assigned else None,
        rl_weights=_weights(branch, RL, fresh, keep_zeros=True),
        ce_weights=ce,
        ref_kl_weights=ref_kl,
        ref_logprobs=stream_of(lambda node: node.reference_logprobs) if scored else None,
        branch=branch.index,
    )


def _weights(branch: Branch, name: str, fresh: np.ndarray, keep_zeros: bool = False) -> np.ndarray | None:
    """Return a weight stream, f32[T], or None if it is absent, or all zeros unless `keep_zeros`.

    An absent stream means weight 1 in rl and 0 in other components, so only the zeros of rl must be kept.
    """
    weights = branch.loss_weights(name)
    if weights is None:
        return None
    stream = np.where(fresh, np.array(weights, dtype=np.float32), np.float32(0))
    return stream if keep_zeros or stream.any() else None


def _any(weights: np.ndarray | None) -> bool:
    return weights is not None and bool(weights.any())


def _misaligned(trace: Trace) -> str | None:
    """Return the reason why a stream of a trace does not match its tokens, or None.

    Checked here because verifiers silently pads such streams.
    """
    for node in trace.nodes:
        sampled, weights = sum(node.mask), node.loss_weights or {}
        if len(node.mask) != len(node.token_ids):
            return "misaligned_mask"
        if any(len(stream) != len(node.token_ids) for stream in weights.values()):
            return "misaligned_loss_weights"
        # Outside rl and ref_kl no ratio is computed, so the sampler's log-probs may be missing.
        ratio_free = RL in weights and not any(weights[RL]) and not any(weights.get(REF_KL, ()))
        if len(node.logprobs) != sampled and not (ratio_free and not node.logprobs):
            return "misaligned_logprobs"
        if not np.isfinite(node.logprobs).all():
            return "nonfinite_logprobs"
        if any(weights.get(REF_KL, ())) and node.reference_logprobs is None:
            return "missing_reference_logprobs"
        for name in ("advantages", "reference_logprobs"):
            values = getattr(node, name)
            if values is not None and len(values) != sampled:
                return f"misaligned_{name}"
            if values is not None and not np.isfinite(values).all():
                return f"nonfinite_{name}"
    return None


def _version_spans(trace: Trace, versions: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return the (oldest, newest) policy version of each node with sampled tokens, by `id(node)`."""
    nodes = [node for node in trace.nodes if any(node.mask)]
    if not versions:
        return {}
    if len(versions) != sum(sum(node.mask) for node in nodes):
        whole = (min(versions), max(versions))
        return {id(node): whole for node in nodes}
    counts = np.cumsum([sum(node.mask) for node in nodes])[:-1]
    parts: Iterable[np.ndarray] = np.split(np.array(versions), counts)
    return {id(node): (int(part.min()), int(part.max())) for node, part in zip(nodes, parts, strict=True)}
