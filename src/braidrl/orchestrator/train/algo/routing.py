"""Which tokens learn what: credit and component weights, written on the nodes of a trace's message graph."""

import math
from collections.abc import Iterable, Iterator, Sequence

from verifiers.v1 import Episode, Trace
from verifiers.v1.graph import MessageNode

from braidrl.configs.algorithm import ActionLossType
from braidrl.orchestrator.train.samples import RL


def trainable_nodes(trace: Trace) -> Iterator[MessageNode]:
    """The nodes that hold sampled tokens, in node order. Credit for a trace is laid out along them."""
    return (node for node in trace.nodes if any(node.mask))


def num_trainable_tokens(trace: Trace) -> int:
    """Sampled tokens of the whole graph; a node that several branches share counts once."""
    return sum(sum(node.mask) for node in trace.nodes)


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
        own = weights.get(action_loss_type, [0.0] * len(node.token_ids))
        weights[RL] = [0.0] * len(node.token_ids)
        weights[action_loss_type] = [
            1.0 if sampled else weight for sampled, weight in zip(node.mask, own, strict=True)
        ]
        node.loss_weights = weights
