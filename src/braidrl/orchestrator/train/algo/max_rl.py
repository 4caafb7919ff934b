"""Maximum-likelihood reinforcement learning."""

from braidrl.configs.algorithm import MaxRLConfig
from braidrl.orchestrator.train.algo.advantage import Array, mean_normalized_advantages
from braidrl.orchestrator.train.algo.group import Attempt, ComparingAlgorithm, rewards_of


class MaxRLAlgorithm(ComparingAlgorithm[MaxRLConfig]):
    """Every sampled token of rollout i gets A_i = (r_i - m) / m, for m the mean reward of the group.

    Source: MaxRL (arXiv:2602.02710). For 0/1 rewards the gradient is unbiased for the maximum-likelihood
    objective log p truncated at the order of the group size, which weighs a task that is solved with
    probability p by about 1/p: hard tasks that are solved at all count most.

    Assumes rewards that are not negative; negative ones are warned about.

    Degenerate cases: m <= 0 gives zeros (nothing to normalise by); equal rewards, and a group of one, give
    exactly 0.
    """

    def credit(self, attempts: list[Attempt]) -> Array:
        rewards = rewards_of(attempts)
        if (rewards < 0).any():
            self.warn_once(
                f"max_rl saw the reward {rewards.min():g}; it is meant for rewards that are not negative: shift "
                'them, or use type = "grpo"'
            )
        self.counts["zero_mean_groups"] += rewards.mean() <= 0
        return mean_normalized_advantages(rewards)
