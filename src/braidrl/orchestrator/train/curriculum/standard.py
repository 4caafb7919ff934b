"""The default sampler."""

from collections.abc import Iterator
from typing import Any

from verifiers.v1 import Task

from braidrl.configs.curriculum.samplers import StandardSamplerConfig
from braidrl.orchestrator.train.curriculum.base import Tasks, TaskSampler


class StandardSampler(TaskSampler[StandardSamplerConfig]):
    """Tasks in source order. A finite taskset starts over when it ends; an infinite one streams.

    Its state is the number of tasks handed out, so a resumed run goes on with the task after the last one. Metrics:
    `tasks` handed out, and of a finite taskset `epoch`, how often it was gone through.
    """

    def __init__(self, config: StandardSamplerConfig, tasks: Tasks, seed: int) -> None:
        super().__init__(config, tasks, seed)
        self.cursor = 0
        self._stream: Iterator[Task] = tasks.stream()

    def next_task(self) -> Task:
        task = next(self._stream, None)
        if task is None:
            raise ValueError(
                f"taskset {self.tasks.name!r} says that it is infinite but ended after {self.cursor} tasks; set "
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
