"""Default sampler: tasks in source order."""

from collections.abc import Iterator
from typing import Any

from verifiers.v1 import Task

from braidrl.configs.curriculum.samplers import StandardSamplerConfig
from braidrl.orchestrator.train.curriculum.base import Tasks, TaskSampler


class StandardSampler(TaskSampler[StandardSamplerConfig]):
    """Draws tasks in source order. A finite taskset repeats, an infinite one is streamed.

    State: number of tasks drawn, so that a resumed run continues with the next task.

    Metrics: `tasks` (drawn so far) and, for a finite taskset, `epoch` (passes over it).
    """

    def __init__(self, config: StandardSamplerConfig, tasks: Tasks, seed: int) -> None:
        super().__init__(config, tasks, seed)
        self.cursor = 0
        self._stream: Iterator[Task] = tasks.stream()

    def next_task(self) -> Task:
        task = next(self._stream, None)
        if task is None:
            raise ValueError(
                f"taskset {self.tasks.name!r} is declared infinite, but ended after {self.cursor} tasks; set "
                "INFINITE = False on its class"
            )
        self.cursor += 1
        return task

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self.cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cursor = state["cursor"]
        self._stream = self.tasks.stream(self.cursor)

    def metrics(self) -> dict[str, float]:
        values = {"tasks": float(self.cursor)}
        if self.tasks.all is not None:
            values["epoch"] = self.cursor / len(self.tasks.all)
        return values
