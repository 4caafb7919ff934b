"""Training signals of tokens: advantages and component weights, stored on the nodes of a trace's message graph."""

import math
from collections.abc import Iterable, Iterator, Sequence

from verifiers.v1 import Episode, Trace
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import Branch

from braidrl.configs.algorithm import ActionLossType
from braidrl.orchestrator.train.samples import RL


def trainable_nodes(trace: Trace) -> Iterator[MessageNode]:
    """Yield the nodes with sampled tokens, in node order. Per-token advantages of a trace follow this order."""
    return (node for node in trace.nodes if any(node.mask))


def num_trainable_tokens(trace: Trace) -> int:
    """Count the sampled tokens of the message graph. Nodes shared by branches count once."""
    return sum(sum(node.mask) for node in trace.nodes)


def trainable_traces(episode: Episode) -> list[Trace]:
    """Return the traces of trainable agents with sampled tokens, including failed ones."""
    return [trace for trace in episode.traces if trace.agent.trainable and num_trainable_tokens(trace)]


def eligible_traces(episodes: Iterable[Episode]) -> list[Trace]:
    """Return the traces that take part in comparisons and training.

    They have no error, a trainable agent, at least one sampled token and a finite reward. All others are excluded
    from every mean.
    """
    return [
        trace for episode in episodes for trace in episode.traces if ineligibility(episode, trace) is None
    ]


def ineligibility(episode: Episode, trace: Trace) -> str | None:
    """Return the reason why a trace of `episode` is not eligible, or None if it is.

    One of `not_trainable`, `error`, `no_sampled_tokens`, `no_reward` (scoring was interrupted, which is not a reward of
    0) and `nonfinite_reward`.
    """
    if not trace.agent.trainable:
        return "not_trainable"
    if trace.has_error or (episode.errors and not episode.ok):
        return "error"
    if not num_trainable_tokens(trace):
        return "no_sampled_tokens"
    if any(reward is None for reward in trace.rewards.values()):
        return "no_reward"
    if not math.isfinite(trace.reward):
        return "nonfinite_reward"
    return None


def groups_by_id(episodes: Iterable[Episode]) -> list[list[Episode]]:
    """Group episodes by the id of their group. Episodes without a group form one group."""
    groups: dict[str | None, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.group.id if episode.group else None, []).append(episode)
    return list(groups.values())


def assign_advantages(trace: Trace, advantages: float | Sequence[float]) -> None:
    """Set the advantages of all sampled tokens of `trace`.

    Args:
        advantages: one value for all sampled tokens, or one per sampled token in node order.

    Raises:
        ValueError: wrong number of values, or a value that is not finite.
    """
    expected = num_trainable_tokens(trace)
    if isinstance(advantages, int | float):
        advantages = [advantages] * expected
    values = [float(value) for value in advantages]
    if len(values) != expected:
        raise ValueError(
            f"trace {trace.id}: {len(values)} advantages for {expected} sampled tokens; "
            "pass a scalar or exactly one value per sampled token, in node order"
        )
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"trace {trace.id}: advantages must be finite, got {values}")
    start = 0
    for node in trainable_nodes(trace):
        count = sum(node.mask)
        node.advantages = values[start : start + count]
        start += count


def stamp_action_weights(trace: Trace, action_loss_type: ActionLossType) -> None:
    """Route the sampled tokens of `trace` to a loss component, with weight 1.

    `rl` needs no streams: without them, every sampled token has weight 1 in rl. For `ce` and `ref_kl`, all tokens get
    weight 0 in rl, and sampled tokens weight 1 in that component. Other tokens (tool output, user turns, template)
    keep their weights in it.
    """
    if action_loss_type == RL:
        return
    for node in trace.nodes:
        weights = dict(node.loss_weights or {})
        weights[RL] = [0.0] * len(node.token_ids)
        node.loss_weights = weights
    stamp_sampled(trace, action_loss_type, 1.0)


def stamp_sampled(trace: Trace, component: str, weight: float) -> None:
    """Set the weight of every sampled token of `trace` in a component. Weights of other tokens do not change."""
    for node in trace.nodes:
        weights = dict(node.loss_weights or {})
        existing = weights.get(component, [0.0] * len(node.token_ids))
        weights[component] = [
            weight if sampled else other for sampled, other in zip(node.mask, existing, strict=True)
        ]
        node.loss_weights = weights


def merge_weights(node: MessageNode, component: str, weights: Sequence[float]) -> None:
    """Set the weights of a node's tokens in a component to the maximum of the existing and the given weights."""
    streams = dict(node.loss_weights or {})
    existing = streams.get(component, [0.0] * len(node.token_ids))
    streams[component] = [max(pair) for pair in zip(existing, weights, strict=True)]
    node.loss_weights = streams


def assign_reference_logprobs(branch: Branch, scored: Sequence[float], prefix: int = 0) -> None:
    """Set the reference log-probs of the sampled tokens of a branch.

    A message shared by several branches keeps its first log-probs.

    Args:
        scored: log-probs of the `prefix` tokens before the branch, followed by those of its tokens.

    Raises:
        ValueError: wrong number of values, or a sampled token without a finite log-prob.
    """
    expected = prefix + len(branch.token_ids)
    if len(scored) != expected:
        raise ValueError(
            f"the reference scored {len(scored)} tokens, but {expected} were sent (a prefix of {prefix} and "
            f"{len(branch.token_ids)} of the branch)"
        )
    start = prefix
    for node in branch.nodes:
        end = start + len(node.token_ids)
        values = [
            float(value) for value, sampled in zip(scored[start:end], node.mask, strict=True) if sampled
        ]
        if not all(math.isfinite(value) for value in values):
            raise ValueError(f"the reference returned no finite log-prob for a sampled token: {values}")
        if values and node.reference_logprobs is None:
            node.reference_logprobs = values
        start = end
