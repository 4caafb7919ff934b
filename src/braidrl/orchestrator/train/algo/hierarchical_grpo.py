"""GRPO for proposer-solver environments."""

import numpy as np

from braidrl.configs.algorithm import HierarchicalGRPOConfig
from braidrl.orchestrator.train.algo.advantage import Array, group_advantages
from braidrl.orchestrator.train.algo.group import Attempt, ComparingAlgorithm, rewards_of


class HierarchicalGRPOAlgorithm(ComparingAlgorithm[HierarchicalGRPOConfig]):
    """Reward minus the mean reward of peers, A = r - mean(r of the peers), for every sampled token of a trace.

    The peers of a trace are the traces of the same agent in its group, including itself. For agents in
    `episode_agents`, they are those of the same episode. Solvers are thus compared with other solvers of the same
    proposed problem, and proposers with other proposals for the same task.

    Source: GRPO (arXiv:2402.03300), with a baseline per role.

    Assumes that an episode consists of one proposed problem and all attempts at it.

    Degenerate cases: a trace without other peers (one solver per episode, one proposal per group), and peers with
    equal rewards, get exactly 0. A group in which no trace has a peer logs a warning.
    """

    def credit(self, attempts: list[Attempt]) -> Array:
        rewards, advantages = rewards_of(attempts), np.zeros(len(attempts))
        peers: dict[tuple[str, str], list[int]] = {}
        for index, attempt in enumerate(attempts):
            peers.setdefault(self._peer_key(attempt), []).append(index)
        if len(peers) == len(attempts):
            self.warn_once(
                "no trace of a group has a peer to compare with, so all advantages are 0; use several episodes per "
                "group (group_size), or several solvers per episode"
            )
        for members in peers.values():
            advantages[members] = group_advantages(rewards[members])
        return advantages

    def _peer_key(self, attempt: Attempt) -> tuple[str, str]:
        agent = attempt.trace.agent.name
        return agent, attempt.episode.id if agent in self.config.episode_agents else ""
