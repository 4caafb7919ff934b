"""Which tokens learn what: credit and component weights, written on the nodes of a trace's message graph."""

import math
from collections.abc import Iterable, Iterator, Sequence

from verifiers.v1 import Episode, Trace
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import Branch

from braidrl.configs.algorithm import ActionLossType
from braidrl.orchestrator.train.samples import RL


def trainable_nodes(trace: Trace) -> Iterator[MessageNode]:
    """The nodes that hold sampled tokens, in node order. Credit for a trace is laid out along them."""
    return (node for node in trace.nodes if any(node.mask))


def num_trainable_tokens(trace: Trace) -> int:
    """Sampled tokens of the whole graph; a node that several branches share counts once."""
    return sum(sum(node.mask) for node in trace.nodes)


def trainable_traces(episode: Episode) -> list[Trace]:
    """The traces of an episode that have something to train, whether or not all went well."""
    return [trace for trace in episode.traces if trace.agent.trainable and num_trainable_tokens(trace)]


def eligible_traces(episodes: Iterable[Episode]) -> list[Trace]:
    """The traces that take part in comparisons and training: complete without error, of a trainable agent,
    with at least one sampled token and a finite reward. All others stay out of every mean."""
    return [
        trace for episode in episodes for trace in episode.traces if ineligibility(episode, trace) is None
    ]


def ineligibility(episode: Episode, trace: Trace) -> str | None:
    """Why a trace of `episode` takes no part: `not_trainable`, `error`, `no_sampled_tokens`, `no_reward`
    (scoring was cut off, which is not a reward of 0) or `nonfinite_reward`; None if it does."""
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
    """Episodes that are compared with each other, by the id of their group and never by their position;
    episodes without a group form one."""
    groups: dict[str | None, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.group.id if episode.group else None, []).append(episode)
    return list(groups.values())


def assign_advantages(trace: Trace, advantages: float | Sequence[float]) -> None:
    """Give every sampled token of `trace` its advantage.

    Args:
        advantages: a scalar for all sampled tokens, or one value per sampled token, node after node.

    Raises:
        ValueError: a list of another length, or a value that is not finite.
    """
    expected = num_trainable_tokens(trace)
    if isinstance(advantages, int | float):
        advantages = [advantages] * expected
    values = [float(value) for value in advantages]
    if len(values) != expected:
        raise ValueError(
            f"trace {trace.id}: {len(values)} advantages for {expected} sampled tokens; "
            "give a scalar or exactly one value per sampled token, in node order"
        )
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"trace {trace.id}: advantages must be finite, got {values}")
    start = 0
    for node in trainable_nodes(trace):
        count = sum(node.mask)
        node.advantages = values[start : start + count]
        start += count


def stamp_action_weights(trace: Trace, action_loss_type: ActionLossType) -> None:
    """Send the sampled tokens of `trace` to the loss component of its algorithm.

    `rl` needs no streams: absent ones mean weight 1 on every sampled token. `ce` and `ref_kl` take the
    sampled tokens out of rl and put weight 1 on them in their own stream, over what it already holds
    elsewhere. Tokens that nobody sampled (tool output, user turns, the template) never get an rl or ref_kl
    weight.
    """
    if action_loss_type == RL:
        return
    for node in trace.nodes:
        weights = dict(node.loss_weights or {})
        weights[RL] = [0.0] * len(node.token_ids)
        node.loss_weights = weights
    stamp_sampled(trace, action_loss_type, 1.0)


def stamp_sampled(trace: Trace, component: str, weight: float) -> None:
    """Give every sampled token of `trace` this weight in a component, over what its stream holds elsewhere."""
    for node in trace.nodes:
        weights = dict(node.loss_weights or {})
        own = weights.get(component, [0.0] * len(node.token_ids))
        weights[component] = [
            weight if sampled else other for sampled, other in zip(node.mask, own, strict=True)
        ]
        node.loss_weights = weights


def merge_weights(node: MessageNode, component: str, weights: Sequence[float]) -> None:
    """Put weights on a node's tokens in a component; where it has some already, the larger one wins."""
    streams = dict(node.loss_weights or {})
    own = streams.get(component, [0.0] * len(node.token_ids))
    streams[component] = [max(pair) for pair in zip(own, weights, strict=True)]
    node.loss_weights = streams


def assign_reference_logprobs(branch: Branch, scored: Sequence[float], prefix: int = 0) -> None:
    """Give the sampled tokens of a branch the log-probs of a reference. A message that branches share keeps
    its first ones.

    Args:
        scored: one log-prob for each of `prefix` tokens in front of the branch, then for each of its tokens.

    Raises:
        ValueError: another length, or a sampled token without a finite log-prob.
    """
    expected = prefix + len(branch.token_ids)
    if len(scored) != expected:
        raise ValueError(
            f"the reference scored {len(scored)} tokens where {expected} were sent ({prefix} in front of "
            f"{len(branch.token_ids)})"
        )
    start = prefix
    for node in branch.nodes:
        end = start + len(node.token_ids)
        values = [
            float(value) for value, sampled in zip(scored[start:end], node.mask, strict=True) if sampled
        ]
        if not all(math.isfinite(value) for value in values):
            raise ValueError(f"the reference gave a sampled token no finite log-prob: {values}")
        if values and node.reference_logprobs is None:
            node.reference_logprobs = values
        start = end
