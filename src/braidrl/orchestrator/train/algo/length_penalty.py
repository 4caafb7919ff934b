"""Length penalty: a reward penalty for long rollouts that grows with the mean reward of the group."""

import numpy as np
from numpy.typing import ArrayLike
from verifiers.v1 import Trace

from braidrl.configs.algorithm.group import LinearPenaltyConfig, LinearSubagentPenaltyConfig
from braidrl.orchestrator.train.algo.advantage import Array

PROPAGATES = ("subagent_call", "continuation", "compaction_attempt", "compaction")
"""Edge types whose target belongs to the same subagent as the source. All other types (returns, cancellations,
messages, unknown ones) leave the subagent."""


def length_penalty(
    traces: list[Trace], rewards: Array, config: LinearPenaltyConfig | LinearSubagentPenaltyConfig
) -> Array:
    """Compute the penalty of each rollout of a group from its token and turn counts, f64[N] (`linear_penalty`)."""
    if isinstance(config, LinearSubagentPenaltyConfig):
        totals = [call_totals(trace, config.subagent_token_weight) for trace in traces]
    else:
        totals = [node_totals(trace) for trace in traces]
    outputs, inputs = zip(*totals, strict=True)
    return linear_penalty(rewards, outputs, inputs, [trace.num_turns for trace in traces], config)


def linear_penalty(
    rewards: ArrayLike,
    outputs: ArrayLike,
    inputs: ArrayLike,
    turns: ArrayLike,
    config: LinearPenaltyConfig | LinearSubagentPenaltyConfig,
) -> Array:
    """Compute max(mean(r), 0) * (w_out O_i / max(O) + w_in I_i / max(I) + w_turn T_i / max(T)).

    Each maximum is at least 1. The clamp at 0 keeps a negative mean reward from rewarding length.

    Args:
        rewards: [N], raw rewards of the group.
        outputs, inputs, turns: [N], number of sampled tokens, other context tokens and model calls of each rollout.

    Returns:
        f64[N], the penalties.
    """
    pass_rate = max(float(np.mean(np.asarray(rewards, dtype=np.float64))), 0.0)
    terms = (
        (config.num_output_tokens_weight, outputs),
        (config.num_input_tokens_weight, inputs),
        (config.num_turns_weight, turns),
    )
    shares = [weight * _share_of_longest(amounts) for weight, amounts in terms]
    return pass_rate * np.sum(shares, axis=0)


def node_totals(trace: Trace) -> tuple[float, float]:
    """Return (sampled tokens, other tokens) of the message graph. Messages shared by branches count once."""
    sampled = sum(sum(node.mask) for node in trace.nodes)
    return float(sampled), float(sum(len(node.token_ids) for node in trace.nodes) - sampled)


def call_totals(trace: Trace, subagent_weight: float) -> tuple[float, float]:
    """Return (output tokens, new input tokens), summed over model calls.

    Tokens of calls by subagents of any depth count `subagent_weight` times. Assumes that branches share no messages.
    """
    subagent = subagent_calls(trace)
    output = new_input = 0.0
    for index, node in enumerate(trace.nodes):
        if node.sampled:
            weight = subagent_weight if index in subagent else 1.0
            output += weight * sum(node.mask)
            new_input += weight * _new_input(trace, index)
    return output, new_input


def subagent_calls(trace: Trace) -> set[int]:
    """Return the indices of nodes that belong to a subagent.

    These are the targets of `subagent_call` edges and everything reachable from them along `PROPAGATES` edges.
    """
    edges = [
        (link.node, target, link.type)
        for target, node in enumerate(trace.nodes)
        for link in node.semantic_parents
    ]
    members = {target for _, target, kind in edges if kind == "subagent_call"}
    frontier = set(members)
    while frontier:
        reached = {target for source, target, kind in edges if source in frontier and kind in PROPAGATES}
        frontier = reached - members
        members |= frontier
    return members


def _new_input(trace: Trace, index: int) -> int:
    """Count the unsampled tokens on the path from the previous model call to this one."""
    node = trace.nodes[index]
    count = len(node.token_ids) - sum(node.mask)
    parent = node.parent
    while parent is not None and not trace.nodes[parent].sampled:
        count += len(trace.nodes[parent].token_ids)
        parent = trace.nodes[parent].parent
    return count


def _share_of_longest(amounts: ArrayLike) -> Array:
    values = np.asarray(amounts, dtype=np.float64)
    return values / max(values.max(initial=0.0), 1.0)
