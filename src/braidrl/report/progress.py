"""Live progress of a run: a bar on a terminal, one line a step elsewhere. Reads the run folder only."""

import time
from typing import Any

from rich.console import Console

from braidrl.monitors.follow import Follower
from braidrl.report.evaluation import evaluation_lines
from braidrl.report.live import LiveBar
from braidrl.utils.run_folder import RunFolder

SHOWN = (
    ("orchestrator", "reward/mean", "reward {:.3f}"),
    ("trainer", "loss", "loss {:+.4f}"),
    ("trainer", "mismatch_kl", "KL {:.1e}"),
    ("orchestrator", "staleness/mean", "stale {:.1f}"),
    ("trainer", "tokens_per_second", "{:.0f} tok/s"),
)
"""Metrics of a progress line: process, name, format."""


class Progress(LiveBar):
    """Follows `metrics/*.jsonl` of a run. Use as a context; call `update` now and then."""

    def __init__(
        self,
        run: RunFolder,
        max_steps: int,
        processes: tuple[str, ...] = ("trainer", "orchestrator"),
        console: Console | None = None,
        every: int = 1,
        after: int = 0,
    ) -> None:
        """`processes` must all have reported a step before it is shown. Without a terminal, `every` n-th is.
        A resumed run shows only what comes `after` its checkpoint."""
        super().__init__(console or Console(), "step", max_steps, line="starting")
        self.max_steps = max_steps
        self.every = every
        self.followers = {name: Follower(run.metrics(name)) for name in processes}
        self.evaluations = Follower(run.metrics("eval"))
        self.evaluations.read()  # an earlier process showed what it evaluated
        self.rows: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in self.followers}
        self.shown = after
        self.first: tuple[int, float] | None = None
        """The first step that was shown, and when: time left is reckoned from there, start-up apart."""

    def update(self) -> None:
        """Show the evaluations, and the steps that both processes have reported, since the last call."""
        for row in self.evaluations.read():
            lines = [f"evaluation of v{row['step']}", *(f"  {line}" for line in evaluation_lines(row))]
            self.console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
        for name, follower in self.followers.items():
            for row in follower.read():
                self.rows[name][row["step"]] = row
        done = set.intersection(*(set(rows) for rows in self.rows.values()))
        for step in sorted(step for step in done if step > self.shown):
            self.shown = step
            self._show(step)

    def _show(self, step: int) -> None:
        rows = {name: rows[step] for name, rows in self.rows.items()}
        values = [(rows.get(name, {}).get(key), text) for name, key, text in SHOWN]
        line = "  ".join(text.format(value) for value, text in values if value is not None)
        if self.console.is_terminal:
            self.bar.update(self.task, completed=step, line=line)
            return
        if step % self.every and step != self.max_steps:
            return
        self.console.print(
            f"step {step}/{self.max_steps}  {line}{self._left(step)}", highlight=False, soft_wrap=True
        )

    def _left(self, step: int) -> str:
        if self.first is None:
            self.first = step, time.monotonic()
            return ""
        first, when = self.first
        return f"  {(time.monotonic() - when) / (step - first) * (self.max_steps - step):.0f} s left"
