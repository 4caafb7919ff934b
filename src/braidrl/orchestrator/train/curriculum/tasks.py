"""The tasks of a training source: in source order, and by their number."""

import itertools
from collections.abc import Iterator

from verifiers.v1 import Task, Taskset

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
