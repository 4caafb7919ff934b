"""Incremental reader of a run folder, shared by the line view and the dashboard."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from braidrl.monitors.follow import Follower
from braidrl.monitors.live import LiveState, read_live
from braidrl.utils.run_folder import RunFolder

Row = dict[str, Any]

HISTORY = 240
"""Number of steps kept in memory."""
PACE = 20
"""Number of recent steps from which the remaining time is estimated."""


class RunReader:
    """Reader of a run's metrics, evaluations, live state and tracker failures.

    Args:
        processes: a step counts once all of these have reported it.
        after: last step before a resumed run; only later steps are reported.
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
        """Last step that all processes have reported."""
        self.rows: dict[str, dict[int, Row]] = {name: {} for name in processes}
        self._evaluated = Follower(run.metrics("eval"))
        self.evaluations: list[Row] = self._evaluated.read()
        """All evaluations so far. Those already in the file at the start are not reported as new."""
        self.live: LiveState | None = None
        self._clock = clock
        self._followers = {name: Follower(run.metrics(name)) for name in self.rows}
        self._failed = Follower(run.notices)
        self._pace: deque[tuple[int, float]] = deque(maxlen=PACE + 1)

    def read(self) -> tuple[list[Row], list[str], list[int]]:
        """Return the evaluations, messages about failed trackers, and steps that are new since the last call."""
        self.live = read_live(self.run.live)
        evaluations = self._evaluated.read()
        self.evaluations += evaluations
        notices = [
            f"tracker {each['tracker']} failed, training continues: {each['message']}"
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
        """Return a metric of the last step that all processes have reported."""
        return self.rows.get(process, {}).get(self.step, {}).get(name)

    def curve(self, process: str, name: str) -> list[float]:
        """Return the values of a metric in the last `HISTORY` steps, oldest first, up to the process's newest step."""
        rows = sorted(self.rows.get(process, {}).items())
        return [row[name] for _, row in rows if row.get(name) is not None]

    @property
    def seconds_left(self) -> float | None:
        """Remaining time in seconds, estimated from recent steps; None with fewer than two."""
        if len(self._pace) < 2:
            return None
        (first, then), (last, now) = self._pace[0], self._pace[-1]
        return (now - then) / (last - first) * (self.max_steps - last)
