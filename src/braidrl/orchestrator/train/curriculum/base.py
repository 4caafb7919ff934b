"""Parts of a curriculum: the tasks of a source, a sampler that chooses tasks, gates that admit finished groups."""

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from verifiers.v1 import Episode, Task, Taskset

from braidrl.configs.curriculum.gates import BaseGateConfig
from braidrl.configs.curriculum.samplers import BaseSamplerConfig

RECENT = 4096
"""Tasks of an infinite taskset that are remembered, so that one under way is found without reading all over again."""


class Tasks:
    """A taskset whose tasks can be found again. A finite one is read once, an infinite one is streamed.

    The number of a task is its place in what the taskset loads (`task.data.idx`).

    Raises:
        ValueError: the taskset is finite and empty.
        RuntimeError: the taskset raises. One that is infinite does so only when it is asked for the next task.
    """

    def __init__(self, taskset: Taskset) -> None:
        self.taskset = taskset
        self.name = taskset.config.id
        self.all: list[Task] | None = list(self._load()) if taskset.bounded else None
        """Every task of a finite taskset, in source order."""
        if self.all == []:
            raise ValueError(f"taskset {self.name!r} has no tasks; loosen what it selects")
        self._known: dict[int, Task] = {number_of(task): task for task in self.all or ()}

    def stream(self, start: int = 0) -> Iterator[Task]:
        """The tasks from the `start`-th on, without end: a finite taskset begins again."""
        if self.all is not None:
            return itertools.islice(itertools.cycle(self.all), start % len(self.all), None)
        return itertools.islice(self._read(), start, None)

    def at(self, number: int) -> Task:
        """The task of this number. Raises `ValueError` where there is none any more."""
        if number not in self._known and self.all is None:
            next((task for task in self._read() if number_of(task) >= number), None)
        if number not in self._known:
            raise ValueError(f"taskset {self.name!r} has no task {number}; it changed since the checkpoint")
        return self._known[number]

    def _load(self) -> Iterator[Task]:
        """The taskset from its beginning."""
        count = 0
        try:
            for task in self.taskset:
                count += 1
                yield task
        except Exception as error:
            raise RuntimeError(
                f"taskset {self.name!r} raised after {count} tasks: {type(error).__name__}: {error}; the run stops, "
                "because it would train on something else than was asked for"
            ) from error

    def _read(self) -> Iterator[Task]:
        """An infinite taskset from its beginning."""
        for task in self._load():
            self._known[number_of(task)] = task
            if len(self._known) > RECENT:
                del self._known[next(iter(self._known))]
            yield task


def number_of(task: Task) -> int:
    """The number that verifiers gives every task of a taskset."""
    assert task.data.idx is not None
    return task.data.idx


SamplerConfigT = TypeVar("SamplerConfigT", bound=BaseSamplerConfig)
GateConfigT = TypeVar("GateConfigT", bound=BaseGateConfig)


class Stateful:
    """What samplers and gates have in common: state and metrics."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as JSON-serialisable data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`."""

    def metrics(self) -> dict[str, float]:
        """Scalars of the step, for its log line."""
        return {}


class TaskSampler(Stateful, ABC, Generic[SamplerConfigT]):
    """Chooses the tasks of one training source and observes what became of them.

    Args:
        tasks: what there is to choose from.
        seed: root of its random numbers.

    Raises:
        ValueError: the taskset is infinite, and the sampler is for finite ones.
    """

    def __init__(self, config: SamplerConfigT, tasks: Tasks, seed: int) -> None:
        if config.finite_only and tasks.all is None:
            raise ValueError(
                f"taskset {tasks.name!r} is infinite, and {type(self).__name__} is for finite ones; let it have a "
                'number of tasks, or use sampler.type = "standard" or "replay"'
            )
        self.config = config
        self.tasks = tasks
        self.seed = seed

    @abstractmethod
    def next_task(self) -> Task:
        """The task of the next group."""

    def observe(self, group: Sequence[Episode]) -> None:
        """See a finished group, whether it trains or not."""

    def random(self, number: int) -> random.Random:
        """The random numbers of the choice of this number, which is to be part of the state: a resumed run then draws
        as if it had not stopped."""
        return random.Random(f"{self.seed}/{number}")


class AdmissionGate(Stateful, ABC, Generic[GateConfigT]):
    """Decides which finished groups of one training source may train."""

    def __init__(self, config: GateConfigT) -> None:
        self.config = config

    @abstractmethod
    def admits(self, group: Sequence[Episode]) -> bool:
        """Whether a group may train. It has the signal that its algorithm gives before a batch is full."""
