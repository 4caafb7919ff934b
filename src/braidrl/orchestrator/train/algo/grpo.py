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
    """Base class of `grpo` and `echo`: advantages relative to a group or a batch (`docs/algorithms.md`).

    The shaped reward s_i of rollout i is its reward, minus the length penalty if there is one. `advantage_norm`
    selects the advantage of its sampled tokens:

    - `group_mean`, `batch_mean`: A_i = s_i - mean(s).
    - `group_zscore`, `batch_zscore`: A_i = (s_i - mean(s)) / (std(s) + 1e-6), with the sample standard deviation.
    - `none`: A_i = s_i.

    Group modes compare the rollouts of a group, batch modes those of the source in one optimizer step.

    With `length_weighted_baseline`, the baseline is sum(L_i s_i) / sum(L_i) for L_i sampled tokens, so that the
    advantages sum to zero over the tokens of a group. With `loss_aggregation = "prompt"`, each sampled token has
    weight 1/T in the `rl` component, for T sampled tokens in the eligible rollouts of its group, so that all groups
    have equal weight.

    `score_group` raises `ValueError` if it gets groups of unequal size, in episodes. A failed episode counts as a
    member of its group, but is excluded from mean and standard deviation.
    """

    def __init__(self, config: ConfigT, clients: object = None) -> None:
        super().__init__(config, clients)
        self.shaped: dict[str, float] = {}
        """Shaped rewards of traces that wait for their batch, by trace id. Removed with the trace (weakref)."""

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
            group_values, advantages = np.split(advantages, [len(attempts)])
            self.give(attempts, group_values)

    def credit(self, attempts: list[Attempt]) -> Array:
        shaped = self.shape(attempts)
        if self.config.length_weighted_baseline:
            tokens = [num_trainable_tokens(attempt.trace) for attempt in attempts]
            return weighted_advantages(shaped, tokens)
        return self.normalize(shaped)

    def shape(self, attempts: list[Attempt]) -> Array:
        """Return the rewards of a group minus its length penalty, f64[N].

        Also writes the token weights of `loss_aggregation = "prompt"`.
        """
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
        """Return the advantages of a group or a batch according to `advantage_norm`, f64[N]."""
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
                f'advantage_norm = "{self.config.advantage_norm}" requires groups of equal size, but these have '
                f"{', '.join(map(str, sizes))} episodes; pass whole groups, including failed episodes, or normalise "
                'over the batch: advantage_norm = "batch_mean" or "batch_zscore"'
            )


class GRPOAlgorithm(GroupRelativeAlgorithm[GRPOConfig]):
    """Reward minus the mean reward of the group: A_i = r_i - mean(r) for every sampled token of rollout i.

    Options: a length penalty, other baselines (`advantage_norm`, `length_weighted_baseline`) and equal weight per
    group (`loss_aggregation`); see docs/algorithms.md.

    Source: GRPO (arXiv:2402.03300), without division by the standard deviation, which would give more weight to groups
    with nearly equal rewards (Dr. GRPO, arXiv:2503.20783). `advantage_norm = "group_zscore"` restores it.

    Assumes that the rollouts of a group are exchangeable attempts at one task by one policy, so that their mean reward
    is a baseline for each of them.

    Degenerate cases: equal shaped rewards, and a group of one, give exactly 0 and train nothing. In the batch modes
    this holds for the batch instead of the group, so groups of one train. With `none` there is no baseline, and only
    a reward of 0 trains nothing.
    """
