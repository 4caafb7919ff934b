"""Maximum-likelihood reinforcement learning."""

from braidrl.configs.algorithm import MaxRLConfig
from braidrl.orchestrator.train.algo.advantage import Array, mean_normalized_advantages
from braidrl.orchestrator.train.algo.group import Attempt, ComparingAlgorithm, rewards_of


class MaxRLAlgorithm(ComparingAlgorithm[MaxRLConfig]):
    """Group-relative reward divided by the mean: A_i = (r_i - m) / m for every sampled token of rollout i.

    m is the mean reward of the group.

    Source: MaxRL (arXiv:2602.02710). For 0/1 rewards, the gradient is an unbiased estimate of that of the
    maximum-likelihood objective log p, truncated at the order of the group size. It weights a task with success
    probability p by about 1/p, so hard tasks that are sometimes solved have the largest effect.

    Assumes non-negative rewards. A negative reward logs a warning.

    Degenerate cases: m <= 0 gives zeros. Equal rewards, and a group of one, give exactly 0.
    """

    def credit(self, attempts: list[Attempt]) -> Array:
        rewards = rewards_of(attempts)
        if (rewards < 0).any():
            self.warn_once(
                f"max_rl received the reward {rewards.min():g}, but requires non-negative rewards; shift the rewards, "
                'or use type = "grpo"'
            )
        self.counts["zero_mean_groups"] += rewards.mean() <= 0
        return mean_normalized_advantages(rewards)
