"""What a run has reported so far: the one reader behind lines and dashboard. Reads the run folder only."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from braidrl.monitors.follow import Follower
from braidrl.monitors.live import LiveState, read_live
from braidrl.utils.run_folder import RunFolder

Row = dict[str, Any]

HISTORY = 240
"""Steps that are remembered."""
PACE = 20
"""Newest steps that time left is reckoned from."""


class RunReader:
    """Follows the metrics of a run, its evaluations, its state of now, and trackers that failed.

    Args:
        processes: must all have reported a step before it counts.
        after: a resumed run has nothing to tell of this step and earlier ones.
    """

    def __init__(
        self,
        run: RunFolder,
        max_steps: int,
        processes: Iterable[str] = ("trainer", "orchestrator"),
        after: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run = run
        self.max_steps = max_steps
        self.step = after
        """The last step that all processes have reported."""
        self.rows: dict[str, dict[int, Row]] = {name: {} for name in processes}
        self._evaluated = Follower(run.metrics("eval"))
        self.evaluations: list[Row] = self._evaluated.read()
        """All so far; those of an earlier process are no news."""
        self.live: LiveState | None = None
        self._clock = clock
        self._followers = {name: Follower(run.metrics(name)) for name in self.rows}
        self._failed = Follower(run.notices)
        self._pace: deque[tuple[int, float]] = deque(maxlen=PACE + 1)

    def read(self) -> tuple[list[Row], list[str], list[int]]:
        """Evaluations, words about trackers, and steps that are new since the last call."""
        self.live = read_live(self.run.live)
        evaluations = self._evaluated.read()
        self.evaluations += evaluations
        notices = [
            f"tracker {each['tracker']} failed, training goes on: {each['message']}"
            for each in self._failed.read()
        ]
        for name, follower in self._followers.items():
            for row in follower.read():
                self.rows[name][row["step"]] = row
        reported = set.intersection(*map(set, self.rows.values()))
        steps = sorted(step for step in reported if step > self.step)
        if steps:
            self.step = steps[-1]
            self._pace.append((self.step, self._clock()))
            for rows in self.rows.values():
                for step in sorted(rows)[:-HISTORY]:
                    del rows[step]
        return evaluations, notices, steps

    def value(self, process: str, name: str) -> float | None:
        """A metric of the last step that all have reported."""
        return self.rows.get(process, {}).get(self.step, {}).get(name)

    def curve(self, process: str, name: str) -> list[float]:
        """A metric of the steps that are remembered, oldest first, as far as the process has come."""
        rows = sorted(self.rows.get(process, {}).items())
        return [row[name] for _, row in rows if row.get(name) is not None]

    @property
    def seconds_left(self) -> float | None:
        """Time left at the pace of the newest steps; None: too few are known."""
        if len(self._pace) < 2:
            return None
        (first, then), (last, now) = self._pace[0], self._pace[-1]
        return (now - then) / (last - first) * (self.max_steps - last)
