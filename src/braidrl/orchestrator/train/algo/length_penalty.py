"""Shaping of rewards by length: long rollouts pay, the more the better their group does."""

import numpy as np
from numpy.typing import ArrayLike
from verifiers.v1 import Trace

from braidrl.configs.algorithm.group import LinearPenaltyConfig, LinearSubagentPenaltyConfig
from braidrl.orchestrator.train.algo.advantage import Array

PROPAGATES = ("subagent_call", "continuation", "compaction_attempt", "compaction")
"""Edges along which a call's successor belongs to the same subagent. All others (returns, cancellations,
messages, unknown ones) lead out of it."""


def length_penalty(
    traces: list[Trace], rewards: Array, config: LinearPenaltyConfig | LinearSubagentPenaltyConfig
) -> Array:
    """f64[N]: what each rollout of a group pays (`linear_penalty`), by its own token and turn counts."""
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
    """max(mean(r), 0) * (w_out O_i / max(O) + w_in I_i / max(I) + w_turn T_i / max(T)), maxima at least 1.

    A group that never succeeds pays nothing, and a negative mean does not reward length.

    Args:
        rewards: raw rewards of the group.
        outputs, inputs, turns: sampled tokens, other context tokens, and model calls of each rollout.
    """
    pass_rate = max(float(np.mean(np.asarray(rewards, dtype=np.float64))), 0.0)
    weighed = (
        (config.num_output_tokens_weight, outputs),
        (config.num_input_tokens_weight, inputs),
        (config.num_turns_weight, turns),
    )
    shares = [weight * _share_of_longest(amounts) for weight, amounts in weighed]
    return pass_rate * np.sum(shares, axis=0)


def node_totals(trace: Trace) -> tuple[float, float]:
    """(sampled tokens, other tokens) of the whole message graph; a shared message counts once."""
    sampled = sum(sum(node.mask) for node in trace.nodes)
    return float(sampled), float(sum(len(node.token_ids) for node in trace.nodes) - sampled)


def call_totals(trace: Trace, subagent_weight: float) -> tuple[float, float]:
    """(output tokens, newly introduced input tokens) summed over model calls, those of subagents at
    `subagent_weight`, however deeply nested. Assumes that branches share no messages."""
    subagent = subagent_calls(trace)
    output = new_input = 0.0
    for index, node in enumerate(trace.nodes):
        if node.sampled:
            weight = subagent_weight if index in subagent else 1.0
            output += weight * sum(node.mask)
            new_input += weight * _new_input(trace, index)
    return output, new_input


def subagent_calls(trace: Trace) -> set[int]:
    """Nodes that belong to a subagent: every target of a `subagent_call` edge, and what follows from these
    along `PROPAGATES`. A call without attribution belongs to none."""
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
    """Unsampled tokens on the way from the previous model call to this one."""
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
