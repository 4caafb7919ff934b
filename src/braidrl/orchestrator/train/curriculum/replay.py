"""Sampler that repeats recent tasks."""

from collections.abc import Sequence
from typing import Any

from verifiers.v1 import Episode, Task

from braidrl.configs.curriculum.samplers import ReplaySamplerConfig, StandardSamplerConfig
from braidrl.orchestrator.train.curriculum.base import Tasks, TaskSampler
from braidrl.orchestrator.train.curriculum.rewards import LatestRewards, between
from braidrl.orchestrator.train.curriculum.standard import StandardSampler


class ReplaySampler(TaskSampler[ReplaySamplerConfig]):
    """Draws tasks in source order or, with `probability`, from a bounded buffer of recent tasks.

    A task enters the buffer when its latest mean group reward is between `above` and `below`. It leaves when it is
    drawn, and returns if its new reward is within the bounds. The taskset may be finite or infinite.

    State: number of draws, buffer, latest mean rewards, position in the taskset.

    Metrics: those of the standard sampler for new tasks, `replayed` (tasks drawn from the buffer so far), `buffer`
    (tasks in the buffer).
    """

    def __init__(self, config: ReplaySamplerConfig, tasks: Tasks, seed: int) -> None:
        super().__init__(config, tasks, seed)
        self.standard = StandardSampler(StandardSamplerConfig(), tasks, seed)
        self.latest = LatestRewards(config.capacity)
        self.buffer: list[int] = []
        """Numbers of the buffered tasks, oldest first."""
        self.choices = 0

    def next_task(self) -> Task:
        random = self.random(self.choices)
        self.choices += 1
        if self.buffer and random.random() < self.config.probability:
            return self.tasks.at(self.buffer.pop(random.randrange(len(self.buffer))))
        return self.standard.next_task()

    def observe(self, group: Sequence[Episode]) -> None:
        if (seen := self.latest.observe(group)) is None:
            return
        number, mean = seen
        if number in self.buffer:
            self.buffer.remove(number)
        if between(mean, self.config.above, self.config.below):
            self.buffer = [*self.buffer, number][-self.config.capacity :]

    def state_dict(self) -> dict[str, Any]:
        return {
            "choices": self.choices,
            "buffer": self.buffer,
            "latest": self.latest.state(),
            "standard": self.standard.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.choices = state["choices"]
        self.buffer = list(state["buffer"])
        self.latest.load(state["latest"])
        self.standard.load_state_dict(state["standard"])

    def metrics(self) -> dict[str, float]:
        replayed = self.choices - self.standard.cursor
        return self.standard.metrics() | {"replayed": float(replayed), "buffer": float(len(self.buffer))}
