"""A sampler that plays tasks as often as their difficulty deserves."""

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
"""Weight of a task that has no reward yet."""


class DifficultyPoolSampler(TaskSampler[DifficultyPoolSamplerConfig]):
    """Tasks of a finite taskset at random, with replacement, each by the weight of its pool.

    A task belongs to the pool with the lowest threshold that its latest mean group reward does not exceed; above every
    threshold, to the highest pool; before it has a reward, to none, with weight 1. When no task has any weight left,
    all are drawn alike, and a warning says so: otherwise none could ever come back.

    State: the number of choices, and each task's latest mean. Metrics: `tasks` drawn; `pools/NAME` and `unseen`, how
    many tasks are in each pool and in none; `weightless`, choices since the last step for which no task had a weight.
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
        weights = self._weights if self._weights.any() else self._all_alike()
        places = np.flatnonzero(weights)
        bounds = np.cumsum(weights[places])
        point = self.random(self.choices).random() * bounds[-1]
        self.choices += 1
        chosen = int(np.searchsorted(bounds, point, side="right"))
        return self._all[places[min(chosen, len(places) - 1)]]

    def observe(self, group: Sequence[Episode]) -> None:
        if (seen := self.latest.observe(group)) is not None:
            self._assign(*seen)

    def _assign_all(self) -> None:
        """Put every task into the pool that it belongs to."""
        self._pool_of: list[str | None] = [None] * len(self._all)
        self._weights = np.full(len(self._all), UNSEEN_WEIGHT)
        for number, mean in self.latest.means():
            self._assign(number, mean)

    def _assign(self, number: int, mean: float) -> None:
        """Put a task into the pool of a mean reward."""
        if (place := self._places.get(number)) is None:
            return  # one that the environment made up, or that a resumed run no longer selects
        pool = min(int(np.searchsorted(self._thresholds, mean)), len(self._pools) - 1)
        self._pool_of[place], config = self._pools[pool]
        self._weights[place] = config.weight

    def _all_alike(self) -> np.ndarray:
        """Weights for a choice when no task has any."""
        if not self._weightless:
            logger.warning(
                "taskset %r: every task is in a pool of weight 0, so all are drawn alike until one leaves it; give "
                "these pools a weight, or end the run",
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
