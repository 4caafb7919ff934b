"""Group-relative policy optimisation."""

from typing import TypeVar

from braidrl.configs.algorithm import GroupRelativeConfig, GRPOConfig
from braidrl.orchestrator.train.algo.advantage import Array, group_advantages, weighted_advantages
from braidrl.orchestrator.train.algo.group import Attempt, ComparingAlgorithm, rewards_of
from braidrl.orchestrator.train.algo.length_penalty import length_penalty
from braidrl.orchestrator.train.algo.routing import num_trainable_tokens, stamp_sampled
from braidrl.orchestrator.train.samples import RL

ConfigT = TypeVar("ConfigT", bound=GroupRelativeConfig)


class GroupRelativeAlgorithm(ComparingAlgorithm[ConfigT]):
    """Every sampled token of rollout i gets A_i = s_i - b, from the rewards of its group.

    s = r by default; with `length_penalty`, r less the penalty (`length_penalty.py`).
    b = mean(s) by default; with `length_weighted_baseline`, b = sum(L_i s_i) / sum(L_i) for L_i sampled
    tokens, so that sum(L_i A_i) = 0: the group's tokens, not its rollouts, have zero mean credit.
    With `loss_aggregation = "prompt"` each sampled token weighs 1/T in the rl component, T the sampled tokens
    of the group's eligible rollouts: every group weighs the same, however long its rollouts are.
    """

    def credit(self, attempts: list[Attempt]) -> Array:
        rewards, traces = rewards_of(attempts), [attempt.trace for attempt in attempts]
        tokens = [num_trainable_tokens(trace) for trace in traces]
        if self.config.length_penalty is not None:
            penalty = length_penalty(traces, rewards, self.config.length_penalty)
            self.note("length_penalty", float(penalty.mean()))
            rewards = rewards - penalty
        if self.config.loss_aggregation == "prompt":
            self.note("prompt_tokens", sum(tokens))
            for trace in traces:
                stamp_sampled(trace, RL, 1.0 / sum(tokens))
        if self.config.length_weighted_baseline:
            return weighted_advantages(rewards, tokens)
        return group_advantages(rewards)


class GRPOAlgorithm(GroupRelativeAlgorithm[GRPOConfig]):
    """Every sampled token of rollout i gets A_i = r_i - mean(r), the mean over the rollouts of its group.
    Shaping, baseline and aggregation: see the base class.

    Source: GRPO (arXiv:2402.03300) without the division by the standard deviation, which would weigh a group
    by how nearly its rollouts agree (Dr. GRPO, arXiv:2503.20783).

    Assumes that the rollouts of a group are exchangeable attempts at one task by one policy, so that their
    mean reward is a baseline for each of them.

    Degenerate cases: equal (shaped) rewards, and a group of one, give exactly 0, which trains nothing.
    """
