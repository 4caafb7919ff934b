"""The curriculum of one training source."""

import itertools
from collections.abc import Sequence
from typing import Any

from verifiers.v1 import Episode, Task, Taskset

from braidrl.configs.curriculum import CurriculumConfig
from braidrl.orchestrator.train.curriculum.samplers import SAMPLERS, TaskSampler


class Curriculum:
    """What a source trains on: its task sampler, and the state of it in checkpoints and metrics."""

    def __init__(self, config: CurriculumConfig, taskset: Taskset) -> None:
        self.taskset = taskset
        self.sampler: TaskSampler = SAMPLERS[config.sampler.type](config.sampler, taskset)

    def next_task(self) -> Task:
        """The task of the next group."""
        return self.sampler.next_task()

    def task_at(self, index: int) -> Task:
        """The task at a position of the taskset: one that a checkpoint says was in flight."""
        task = next(itertools.islice(iter(self.taskset), index, None), None)
        if task is None:
            raise ValueError(
                f"taskset {self.taskset.config.id!r} has no task {index}; it changed since the checkpoint"
            )
        return task

    def observe(self, group: Sequence[Episode]) -> None:
        """See a finalized group, whether it trains or not."""
        self.sampler.observe(group)

    def state_dict(self) -> dict[str, Any]:
        return {"sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state["sampler"])

    def metrics(self) -> dict[str, float]:
        """Scalars since the last call, by name below `curriculum/ENV/`."""
        return self.sampler.metrics()
