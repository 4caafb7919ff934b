"""Group-relative policy optimisation."""

import weakref
from typing import TypeVar

import numpy as np
from verifiers.v1 import Episode

from braidrl.configs.algorithm import GroupRelativeConfig, GRPOConfig
from braidrl.orchestrator.train.algo.advantage import (
    Array,
    group_advantages,
    standardized_advantages,
    weighted_advantages,
)
from braidrl.orchestrator.train.algo.group import Attempt, CreditingAlgorithm, rewards_of
from braidrl.orchestrator.train.algo.length_penalty import length_penalty
from braidrl.orchestrator.train.algo.routing import groups_by_id, num_trainable_tokens, stamp_sampled
from braidrl.orchestrator.train.samples import RL

ConfigT = TypeVar("ConfigT", bound=GroupRelativeConfig)


class GroupRelativeAlgorithm(CreditingAlgorithm[ConfigT]):
    """Every sampled token of rollout i gets A_i = s_i - b, or (s_i - b) / (std(s) + 1e-6), or s_i.

    s = r by default; with `length_penalty`, r less the penalty (`length_penalty.py`), which is the group's.
    `advantage_norm` says what s is measured against, b = mean(s) and the sample's std(s) over
    - `group_mean`, `group_zscore`: the rollouts of its group, as soon as that is complete;
    - `batch_mean`, `batch_zscore`: the environment's rollouts in the optimizer step, all of which the orchestrator
      holds; `none`: nothing, A_i = s_i.
    With `length_weighted_baseline`, b = sum(L_i s_i) / sum(L_i) for L_i sampled tokens of the group, so that
    sum(L_i A_i) = 0: the group's tokens, not its rollouts, have zero mean credit.
    With `loss_aggregation = "prompt"` each sampled token weighs 1/T in the rl component, T the sampled tokens
    of the group's eligible rollouts: every group weighs the same, however long its rollouts are.

    Source: seed 002 (the modes), seed 000 (shaping, baseline, aggregation).

    Groups that are compared have equal sizes, counted in episodes: `group_size` sees to it in every run, so
    `score_group` refuses unequal ones together (ValueError). A sibling that failed is a member as well: it takes no
    part in mean and deviation, and stops nothing.
    """

    def __init__(self, config: ConfigT, clients: object = None) -> None:
        super().__init__(config, clients)
        self.shaped: dict[str, float] = {}
        """Shaped reward of each trace that waits for its batch, by id, as long as the trace lives."""

    async def score_group(self, episodes: list[Episode]) -> None:
        self._require_equal_groups(episodes)
        if self.barrier == "group":
            return self.assign(episodes)
        for attempts in self.compared(episodes):
            for attempt, value in zip(attempts, self.shape(attempts), strict=True):
                self.shaped[attempt.trace.id] = float(value)
                weakref.finalize(attempt.trace, self.shaped.pop, attempt.trace.id, None)

    async def score_batch(self, episodes: list[Episode]) -> None:
        groups = [self._shaped_attempts(group) for group in groups_by_id(episodes)]
        values = [self.shaped[attempt.trace.id] for attempts in groups for attempt in attempts]
        advantages = self.normalize(np.array(values, dtype=np.float64))
        for attempts in filter(None, groups):
            own, advantages = np.split(advantages, [len(attempts)])
            self.give(attempts, own)

    def credit(self, attempts: list[Attempt]) -> Array:
        shaped = self.shape(attempts)
        if self.config.length_weighted_baseline:
            tokens = [num_trainable_tokens(attempt.trace) for attempt in attempts]
            return weighted_advantages(shaped, tokens)
        return self.normalize(shaped)

    def shape(self, attempts: list[Attempt]) -> Array:
        """f64[N]: the rewards of a group less its length penalty. Also weighs the tokens of the group."""
        rewards, traces = rewards_of(attempts), [attempt.trace for attempt in attempts]
        if self.config.length_penalty is not None:
            penalty = length_penalty(traces, rewards, self.config.length_penalty)
            self.note("length_penalty", float(penalty.mean()))
            rewards = rewards - penalty
        if self.config.loss_aggregation == "prompt":
            tokens = sum(num_trainable_tokens(trace) for trace in traces)
            self.note("prompt_tokens", tokens)
            for trace in traces:
                stamp_sampled(trace, RL, 1.0 / tokens)
        return rewards

    def normalize(self, shaped: Array) -> Array:
        """f64[N]: the advantages of a group, or of a batch, by `advantage_norm`."""
        if self.config.advantage_norm == "none":
            return shaped
        zscore = self.config.advantage_norm.endswith("zscore")
        return standardized_advantages(shaped) if zscore else group_advantages(shaped)

    def _shaped_attempts(self, group: list[Episode]) -> list[Attempt]:
        attempts = [Attempt(episode, trace) for episode in group for trace in episode.traces]
        return [attempt for attempt in attempts if attempt.trace.id in self.shaped]

    def _require_equal_groups(self, episodes: list[Episode]) -> None:
        sizes = sorted({len(group) for group in groups_by_id(episodes)})
        if self.config.needs_siblings and len(sizes) > 1:
            raise ValueError(
                f'advantage_norm = "{self.config.advantage_norm}" compares groups of equal size, and these have '
                f"{', '.join(map(str, sizes))} episodes; pass whole groups, failed episodes included, or compare "
                'over the batch: advantage_norm = "batch_mean" or "batch_zscore"'
            )


class GRPOAlgorithm(GroupRelativeAlgorithm[GRPOConfig]):
    """Every sampled token of rollout i gets A_i = r_i - mean(r), the mean over the rollouts of its group.
    Shaping, baseline, `advantage_norm` and aggregation: see the base class.

    Source: GRPO (arXiv:2402.03300) without the division by the standard deviation, which would weigh a group
    by how nearly its rollouts agree (Dr. GRPO, arXiv:2503.20783); `advantage_norm = "group_zscore"` divides.

    Assumes that the rollouts of a group are exchangeable attempts at one task by one policy, so that their
    mean reward is a baseline for each of them.

    Degenerate cases: equal (shaped) rewards, and a group of one, give exactly 0, which trains nothing; so do those
    of a batch in the batch modes, where a group of one is like any other. With `none` there is no baseline: a reward
    of 0 trains nothing, and all others push up or down.
    """
