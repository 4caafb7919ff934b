"""Sampler that draws tasks with weights by difficulty."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from verifiers.v1 import Episode, Task

from braidrl.configs.curriculum.samplers import DifficultyPoolSamplerConfig
from braidrl.orchestrator.train.curriculum.base import Tasks, TaskSampler, number_of
from braidrl.orchestrator.train.curriculum.rewards import LatestRewards

logger = logging.getLogger(__name__)

UNSEEN_WEIGHT = 1.0
"""Weight of a task without a reward."""


class DifficultyPoolSampler(TaskSampler[DifficultyPoolSamplerConfig]):
    """Draws tasks of a finite taskset at random, with replacement, weighted by their pools.

    A task belongs to the pool with the lowest threshold that is at least its latest mean group reward, or to the
    highest pool if none is. Tasks without a reward are in no pool and have weight 1. If every task has weight 0, all
    are drawn uniformly, with a warning: otherwise no task could leave its pool.

    State: number of draws, latest mean reward of each task.

    Metrics: `tasks` (drawn so far), `pools/NAME` and `unseen` (number of tasks in each pool and in none), `weightless`
    (draws since the last step while every task had weight 0).
    """

    def __init__(self, config: DifficultyPoolSamplerConfig, tasks: Tasks, seed: int) -> None:
        super().__init__(config, tasks, seed)
        self._all = tasks.all or []
        self._places = {number_of(task): place for place, task in enumerate(self._all)}
        self._pools = sorted(config.pools.items(), key=lambda item: item[1].threshold)
        self._thresholds = [pool.threshold for _, pool in self._pools]
        self.choices = 0
        self.latest = LatestRewards()
        self._weightless = 0
        self._assign_all()

    def next_task(self) -> Task:
        weights = self._weights if self._weights.any() else self._uniform_weights()
        places = np.flatnonzero(weights)
        bounds = np.cumsum(weights[places])
        point = self.random(self.choices).random() * bounds[-1]
        self.choices += 1
        chosen = int(np.searchsorted(bounds, point, side="right"))
        return self._all[places[min(chosen, len(places) - 1)]]  # rounding may give point == bounds[-1]

    def observe(self, group: Sequence[Episode]) -> None:
        if (seen := self.latest.observe(group)) is not None:
            self._assign(*seen)

    def _assign_all(self) -> None:
        """Assign every task to its pool."""
        self._pool_of: list[str | None] = [None] * len(self._all)
        self._weights = np.full(len(self._all), UNSEEN_WEIGHT)
        for number, mean in self.latest.means():
            self._assign(number, mean)

    def _assign(self, number: int, mean: float) -> None:
        """Assign a task to the pool of its mean reward."""
        if (place := self._places.get(number)) is None:
            return  # proposed by the environment, or no longer in the taskset after a resume
        pool = min(int(np.searchsorted(self._thresholds, mean)), len(self._pools) - 1)
        self._pool_of[place], config = self._pools[pool]
        self._weights[place] = config.weight

    def _uniform_weights(self) -> np.ndarray:
        """Return equal weights, for draws while every task has weight 0."""
        if not self._weightless:
            logger.warning(
                "taskset %r: every task is in a pool of weight 0, so all are drawn uniformly until one changes its "
                "pool; give these pools a weight above 0, or end the run",
                self.tasks.name,
            )
        self._weightless += 1
        return np.ones(len(self._all))

    def state_dict(self) -> dict[str, Any]:
        return {"choices": self.choices, "latest": self.latest.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.choices = state["choices"]
        self.latest.load(state["latest"])
        self._assign_all()

    def metrics(self) -> dict[str, float]:
        counts = Counter(self._pool_of)
        weightless, self._weightless = self._weightless, 0
        pools = {f"pools/{name}": float(counts[name]) for name in self.config.pools}
        return {
            "tasks": float(self.choices),
            "unseen": float(counts[None]),
            **pools,
            "weightless": float(weightless),
        }
