"""Parts of a curriculum: tasks of a source, base class of samplers, base class of admission gates."""

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from verifiers.v1 import Episode, Task, Taskset

from braidrl.configs.curriculum.gates import BaseGateConfig
from braidrl.configs.curriculum.samplers import BaseSamplerConfig

RECENT = 4096
"""Number of tasks of an infinite taskset that stay in memory, so that `Tasks.at` need not read it from the start."""


class Tasks:
    """Tasks of a taskset, accessible by number. A finite taskset is read once, an infinite one is streamed.

    The number of a task is its index in the taskset (`task.data.idx`).

    Raises:
        ValueError: the taskset is finite and empty.
        RuntimeError: the taskset raised an error. For an infinite taskset, raised on access of the next task.
    """

    def __init__(self, taskset: Taskset) -> None:
        self.taskset = taskset
        self.name = taskset.config.id
        self.all: list[Task] | None = list(self._load()) if taskset.bounded else None
        """All tasks of a finite taskset in source order, or None for an infinite one."""
        if self.all == []:
            raise ValueError(f"taskset {self.name!r} has no tasks; widen its selection")
        self._known: dict[int, Task] = {number_of(task): task for task in self.all or ()}

    def stream(self, start: int = 0) -> Iterator[Task]:
        """Yield tasks without end, from number `start`. A finite taskset repeats."""
        if self.all is not None:
            return itertools.islice(itertools.cycle(self.all), start % len(self.all), None)
        return itertools.islice(self._read(), start, None)

    def at(self, number: int) -> Task:
        """Return the task with this number. Raises `ValueError` if it does not exist."""
        if number not in self._known and self.all is None:
            next((task for task in self._read() if number_of(task) >= number), None)
        if number not in self._known:
            raise ValueError(
                f"taskset {self.name!r} has no task {number}, but the checkpoint refers to it; resume "
                "with the taskset of the original run"
            )
        return self._known[number]

    def _load(self) -> Iterator[Task]:
        """Yield the tasks from the start. Raises `RuntimeError` if the taskset raises."""
        count = 0
        try:
            for task in self.taskset:
                count += 1
                yield task
        except Exception as error:
            raise RuntimeError(
                f"taskset {self.name!r} raised after {count} tasks: {type(error).__name__}: {error}; the run stops, "
                "because it would train on an incomplete taskset. Fix the taskset"
            ) from error

    def _read(self) -> Iterator[Task]:
        """Yield the tasks of an infinite taskset from the start, and remember the last `RECENT` ones."""
        for task in self._load():
            self._known[number_of(task)] = task
            if len(self._known) > RECENT:
                del self._known[next(iter(self._known))]
            yield task


def number_of(task: Task) -> int:
    """Return the number that verifiers assigned to a task."""
    assert task.data.idx is not None
    return task.data.idx


SamplerConfigT = TypeVar("SamplerConfigT", bound=BaseSamplerConfig)
GateConfigT = TypeVar("GateConfigT", bound=BaseGateConfig)


class Stateful:
    """Base class of samplers and gates: state and metrics."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON-serialisable data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`."""

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the step, for its log line."""
        return {}


class TaskSampler(Stateful, ABC, Generic[SamplerConfigT]):
    """Base class of samplers, which select the tasks of one training source and observe their outcome.

    Args:
        tasks: tasks of the source.
        seed: root seed of the random numbers.

    Raises:
        ValueError: the taskset is infinite, but the sampler requires a finite one.
    """

    def __init__(self, config: SamplerConfigT, tasks: Tasks, seed: int) -> None:
        if config.finite_only and tasks.all is None:
            raise ValueError(
                f"taskset {tasks.name!r} is infinite, but {type(self).__name__} requires a finite taskset; limit the "
                'number of tasks, or use sampler.type = "standard" or "replay"'
            )
        self.config = config
        self.tasks = tasks
        self.seed = seed

    @abstractmethod
    def next_task(self) -> Task:
        """Return the task of the next group."""

    def observe(self, group: Sequence[Episode]) -> None:
        """Process the outcome of a finished group, whether or not it trains."""

    def random(self, number: int) -> random.Random:
        """Return the random generator of the draw with this number.

        If the number of draws is part of the state, a resumed run draws the same tasks as an uninterrupted one.
        """
        return random.Random(f"{self.seed}/{number}")


class AdmissionGate(Stateful, ABC, Generic[GateConfigT]):
    """Base class of gates, which decide whether a finished group of a training source may train."""

    def __init__(self, config: GateConfigT) -> None:
        self.config = config

    @abstractmethod
    def admits(self, group: Sequence[Episode]) -> bool:
        """Return True if a group may train. It has the advantages that its algorithm assigns before a batch is full."""
