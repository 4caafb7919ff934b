"""Task samplers: which task of a taskset comes next."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from verifiers.v1 import Episode, Task, Taskset

from braidrl.configs.curriculum import StandardSamplerConfig


class TaskSampler(ABC):
    """Chooses the tasks of one training source and observes what became of them."""

    @abstractmethod
    def next_task(self) -> Task:
        """The task of the next group."""

    def observe(self, group: Sequence[Episode]) -> None:  # noqa: B027
        """See a finalized group, whether it trains or not."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as JSON-serialisable data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Restore `state_dict`."""

    def metrics(self) -> dict[str, float]:
        """Scalars since the last call, for the step's log line."""
        return {}


class StandardSampler(TaskSampler):
    """Tasks in source order. A finite taskset starts over when it ends; an infinite one streams.

    Its state is the number of tasks handed out, so a resumed run goes on with the task after the last one.
    """

    def __init__(self, config: StandardSamplerConfig, taskset: Taskset) -> None:
        self.taskset = taskset
        self.cursor = 0
        self._tasks: list[Task] | None = list(taskset) if taskset.bounded else None
        if self._tasks == []:
            raise ValueError(f"taskset {taskset.config.id!r} has no tasks; loosen what it selects")
        self._stream: Iterator[Task] = iter(())
        self._restart()

    def next_task(self) -> Task:
        task = next(self._stream, None)
        if task is None:
            raise ValueError(
                f"taskset {self.taskset.config.id!r} says that it is infinite but ended after {self.cursor} "
                f"tasks; set INFINITE = False on its class"
            )
        self.cursor += 1
        return task

    def _restart(self) -> None:
        """Stream the tasks from the cursor on."""
        if self._tasks is None:
            self._stream = itertools.islice(iter(self.taskset), self.cursor, None)
        else:
            self._stream = itertools.islice(
                itertools.cycle(self._tasks), self.cursor % len(self._tasks), None
            )

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self.cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cursor = state["cursor"]
        self._restart()

    def metrics(self) -> dict[str, float]:
        values = {"tasks": float(self.cursor)}
        if self._tasks is not None:
            values["epoch"] = self.cursor / len(self._tasks)
        return values


SAMPLERS = {"standard": StandardSampler}
"""Every sampler by the `type` of its config."""
