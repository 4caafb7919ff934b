"""Role-conditioned advantage estimation, for self-play."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from verifiers.v1 import Episode

from braidrl.configs.algorithm import RAEConfig
from braidrl.orchestrator.train.algo.advantage import Array
from braidrl.orchestrator.train.algo.group import Attempt, CreditingAlgorithm, rewards_of


class RAEAlgorithm(CreditingAlgorithm[RAEConfig]):
    """Every sampled token of a trace gets A = r - b, then b <- decay b + (1 - decay) r, for b the baseline of
    the trace's agent, which starts at 0.

    Source: SPIRAL (arXiv:2506.24119). One instance serves one environment, so baselines are those of the
    paper's (game, role). Credit is measured before the update, and traces follow each other in order: the
    second trace of an agent in a group sees the first one's update. Episodes are scored with their batch, in the
    order of dispatch, so that baselines do not depend on which of them ends first, and a checkpoint's hold the
    episodes of its batches and no others.

    Assumes that an agent's past rewards predict its next one, which holds where roles are asymmetric and
    rewards sum to zero, and where a group mean would mix roles. Siblings are not needed: any group size works.
    With one agent this is REINFORCE with a running mean.

    Degenerate cases: the first 1/(1 - decay) traces of an agent see a baseline that is still near 0; a reward
    that equals the baseline gives 0. Baselines are part of a checkpoint.
    """

    order_matters: ClassVar[bool] = True

    def __init__(self, config: RAEConfig, clients: object = None) -> None:
        super().__init__(config, clients)
        self.baselines: dict[str, float] = {}

    async def score_batch(self, episodes: list[Episode]) -> None:
        self.assign(episodes)

    def credit(self, attempts: list[Attempt]) -> Array:
        agents = [attempt.trace.agent.name for attempt in attempts]
        rewards = rewards_of(attempts)
        return np.array([self._measure(agent, reward) for agent, reward in zip(agents, rewards, strict=True)])

    def _measure(self, agent: str, reward: float) -> float:
        baseline = self.baselines.get(agent, 0.0)
        self.baselines[agent] = self.config.decay * baseline + (1.0 - self.config.decay) * float(reward)
        return float(reward) - baseline

    def state_dict(self) -> dict[str, Any]:
        return {"baselines": dict(self.baselines)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.baselines = {agent: float(value) for agent, value in state["baselines"].items()}

    def metrics(self) -> dict[str, float]:
        """Also `baseline/AGENT`, as it stands."""
        return super().metrics() | {f"baseline/{agent}": value for agent, value in self.baselines.items()}
