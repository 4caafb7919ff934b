"""Role-conditioned advantage estimation, for self-play."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from verifiers.v1 import Episode

from braidrl.configs.algorithm import RAEConfig
from braidrl.orchestrator.train.algo.advantage import Array
from braidrl.orchestrator.train.algo.group import Attempt, CreditingAlgorithm, rewards_of


class RAEAlgorithm(CreditingAlgorithm[RAEConfig]):
    """Reward minus the running mean reward of the agent: A = r - b for every sampled token of a trace.

    Each agent has a baseline b. It starts at 0 and is updated after each trace: b <- decay b + (1 - decay) r. A trace's
    advantage uses the baseline before its own update. Episodes are scored with their batch in dispatch order, so
    baselines do not depend on completion order, and a checkpoint contains the updates of exactly the episodes trained
    so far.

    Source: SPIRAL (arXiv:2506.24119). Each source has its own instance, so a baseline belongs to one (game, role) of
    the paper.

    Assumes that past rewards of an agent predict its next reward. This holds for asymmetric roles in zero-sum games,
    where a group mean would mix the roles. Any group size works. With one agent this is REINFORCE with a running mean.

    Degenerate cases: for the first 1/(1 - decay) traces of an agent, the baseline is still close to 0. A reward equal
    to the baseline gives 0.
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
        return np.array(
            [self._advantage(agent, reward) for agent, reward in zip(agents, rewards, strict=True)]
        )

    def _advantage(self, agent: str, reward: float) -> float:
        baseline = self.baselines.get(agent, 0.0)
        self.baselines[agent] = self.config.decay * baseline + (1.0 - self.config.decay) * float(reward)
        return float(reward) - baseline

    def state_dict(self) -> dict[str, Any]:
        return {"baselines": dict(self.baselines)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.baselines = {agent: float(value) for agent, value in state["baselines"].items()}

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the base class, and the current `baseline/AGENT` of every agent."""
        return super().metrics() | {f"baseline/{agent}": value for agent, value in self.baselines.items()}
