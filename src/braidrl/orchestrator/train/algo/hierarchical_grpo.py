"""GRPO for proposer-solver environments."""

import numpy as np

from braidrl.configs.algorithm import HierarchicalGRPOConfig
from braidrl.orchestrator.train.algo.advantage import Array, group_advantages
from braidrl.orchestrator.train.algo.group import Attempt, ComparingAlgorithm, rewards_of


class HierarchicalGRPOAlgorithm(ComparingAlgorithm[HierarchicalGRPOConfig]):
    """Every sampled token of a trace gets A = r - mean(r of its peers, itself among them).

    The peers of a trace are the group's traces of the same agent; for the agents in `episode_agents` only
    those of the same episode. So solvers are compared with who attempted the same proposed problem, and
    proposers with the other proposals for the same source task.

    Source: GRPO (`grpo.py`), with the baseline of the role.

    Assumes that an episode is one proposed problem and all attempts at it.

    Degenerate cases: a trace without another peer (one solver an episode, one proposal a group), and peers
    with equal rewards, get exactly 0; a group in which nobody has a peer is warned about.
    """

    def credit(self, attempts: list[Attempt]) -> Array:
        rewards, advantages = rewards_of(attempts), np.zeros(len(attempts))
        peers: dict[tuple[str, str], list[int]] = {}
        for index, attempt in enumerate(attempts):
            peers.setdefault(self._circle(attempt), []).append(index)
        if len(peers) == len(attempts):
            self.warn_once(
                "no trace of a group has a peer to be compared with, so all advantages are 0; have several episodes in "
                "a group (group_size), or several solvers in an episode"
            )
        for members in peers.values():
            advantages[members] = group_advantages(rewards[members])
        return advantages

    def _circle(self, attempt: Attempt) -> tuple[str, str]:
        agent = attempt.trace.agent.name
        return agent, attempt.episode.id if agent in self.config.episode_agents else ""
