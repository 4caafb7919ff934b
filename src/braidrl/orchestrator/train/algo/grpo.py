"""Group-relative policy optimisation."""

import logging
from collections import Counter

import numpy as np
from verifiers.v1 import Episode, Trace

from braidrl.configs.algorithm import GRPOConfig
from braidrl.orchestrator.train.algo.advantage import Array, all_equal, group_advantages
from braidrl.orchestrator.train.algo.base import Algorithm
from braidrl.orchestrator.train.algo.routing import assign_advantages, groups_by_id, ineligibility

logger = logging.getLogger(__name__)


class GRPOAlgorithm(Algorithm[GRPOConfig]):
    """Every sampled token of rollout i gets A_i = r_i - mean(r), the mean over the rollouts of its group.

    Source: GRPO (arXiv:2402.03300) without the division by the standard deviation, which would weigh a group
    by how nearly its rollouts agree (Dr. GRPO, arXiv:2503.20783).

    Assumes that the rollouts of a group are exchangeable attempts at one task by one policy, so that their
    mean reward is a baseline for each of them.

    Degenerate cases: equal rewards, and a group of one, give exactly 0, which trains nothing. Rollouts with
    an error, of an untrainable agent, without sampled tokens, or without a finite reward stay out of the
    mean, keep no advantage, and are counted.
    """

    def __init__(self, config: GRPOConfig, clients: object = None) -> None:
        super().__init__(config, clients)
        self._counts: Counter[str] = Counter()
        self._warned = False

    async def score_group(self, episodes: list[Episode]) -> None:
        for group in groups_by_id(episodes):
            self._warn_if_alone(group)
            traces = self._eligible(group)
            if not traces:
                continue
            rewards = np.array([trace.reward for trace in traces], dtype=np.float64)
            self._counts["groups"] += 1
            self._counts["zero_advantage_groups"] += all_equal(rewards)
            for trace, advantage in zip(traces, self.advantages(rewards), strict=True):
                assign_advantages(trace, float(advantage))

    def advantages(self, rewards: Array) -> Array:
        """One advantage per eligible trace of a group."""
        return group_advantages(rewards)

    def metrics(self) -> dict[str, float]:
        """`groups`, `zero_advantage_groups` (a share in [0, 1]) and `excluded/REASON` (traces) since the last
        call."""
        counts, self._counts = self._counts, Counter()
        metrics = {key: float(value) for key, value in counts.items()}
        if counts["groups"]:
            metrics["zero_advantage_groups"] = counts["zero_advantage_groups"] / counts["groups"]
        return metrics

    def _eligible(self, group: list[Episode]) -> list[Trace]:
        reasons = [(trace, ineligibility(episode, trace)) for episode in group for trace in episode.traces]
        self._counts.update(f"excluded/{reason}" for _, reason in reasons if reason)
        return [trace for trace, reason in reasons if reason is None]

    def _warn_if_alone(self, group: list[Episode]) -> None:
        if len(group) == 1 and not self._warned:
            self._warned = True
            logger.warning(
                "a group of one episode has no siblings to be compared with, so its advantage is 0 and it "
                "trains nothing; set group_size to 2 or more"
            )
