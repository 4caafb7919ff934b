"""Progress of a run as one line per step, or as a progress bar on a terminal."""

import time
from collections.abc import Iterator

from rich.console import Console

from braidrl.monitors.metrics import source_of
from braidrl.report.evaluation import evaluation_lines
from braidrl.report.live import LiveBar
from braidrl.report.reading import RunReader
from braidrl.utils.run_folder import RunFolder

SHOWN = (
    ("orchestrator", "reward/mean", "reward {:.3f}"),
    ("trainer", "loss", "loss {:+.4f}"),
    ("trainer", "mismatch_kl", "KL {:.1e}"),
    ("orchestrator", "staleness/mean", "stale {:.1f}"),
    ("trainer", "tokens_per_second", "{:.0f} tok/s"),
)
"""Metrics of a progress line: process, name, format."""
DETAILS = (
    ("trainer", "entropy", "entropy {:.3f}"),
    ("trainer", "grad_norm", "grad norm {:.3f}"),
    ("orchestrator", "zero_signal", "{:.0%} without signal"),
    ("orchestrator", "tokens_per_second", "sampler {:.0f} tok/s"),
    ("orchestrator", "queue/in_flight", "in flight {:.0f}"),
    ("orchestrator", "queue/buffered", "buffered {:.0f}"),
    ("trainer", "time/wait", "trainer waited {:.1f} s"),
    ("orchestrator", "seconds/policy_wait", "orchestrator waited {:.1f} s"),
)
"""Metrics of the second line with `--verbose`, after the reward of each source."""
QUIET_SECONDS = 30.0
"""Seconds without progress after which pending waits are shown."""


class Progress(LiveBar):
    """Line-based view of a run. Use as a context manager and call `update` regularly."""

    def __init__(
        self,
        run: RunFolder,
        max_steps: int,
        processes: tuple[str, ...] = ("trainer", "orchestrator"),
        console: Console | None = None,
        every: int = 1,
        after: int = 0,
        verbose: bool = False,
    ) -> None:
        """Open a view of `run`, which ends at `max_steps`.

        Args:
            processes: a step is shown once all of these have reported it.
            every: without a terminal, show only every n-th step.
            after: last step before a resumed run; only later steps are shown.
        """
        super().__init__(console or Console(), "step", max_steps, line="starting")
        self.reading = RunReader(run, max_steps, processes, after)
        self.max_steps = max_steps
        self.every = every
        self.verbose = verbose
        self.first: tuple[int, float] | None = None
        """First step shown and its time. The remaining time is estimated from there, which excludes start-up."""
        self.last_output = time.monotonic()

    def update(self) -> None:
        """Show new evaluations, and new steps that all processes have reported."""
        evaluations, notices, steps = self.reading.read()
        for row in evaluations:
            self._print(
                "\n".join([f"evaluation of v{row['step']}", *(f"  {line}" for line in evaluation_lines(row))])
            )
        for notice in notices:
            self._print(notice)
        for step in steps:
            self._show(step)
        live = self.reading.live
        quiet = time.monotonic() - self.last_output >= QUIET_SECONDS
        if quiet and live is not None and live.fresh and live.idle >= QUIET_SECONDS:
            self._print(f"no progress for {live.idle:.0f} s; {live.waits}")

    def _show(self, step: int) -> None:
        line = "  ".join(self._values(step, SHOWN))
        if self.draws:
            self.bar.update(self.task, completed=step, line=line)
            return
        if step % self.every and step != self.max_steps:
            return
        self._print(f"step {step}/{self.max_steps}  {line}{self._left(step)}")
        if self.verbose:
            self._print(f"  {'  '.join([*self._rewards(step), *self._values(step, DETAILS)])}")

    def _values(self, step: int, shown: tuple[tuple[str, str, str], ...]) -> Iterator[str]:
        for process, name, text in shown:
            value = self.reading.rows.get(process, {}).get(step, {}).get(name)
            if value is not None:
                yield text.format(value)

    def _rewards(self, step: int) -> Iterator[str]:
        for name, value in self.reading.rows.get("orchestrator", {}).get(step, {}).items():
            if (source := source_of("orchestrator", name)) is not None and value is not None:
                yield f"{source} {value:.3f}"

    def _left(self, step: int) -> str:
        if self.first is None:
            self.first = step, time.monotonic()
            return ""
        first, when = self.first
        return f"  {(time.monotonic() - when) / (step - first) * (self.max_steps - step):.0f} s left"

    def _print(self, text: str) -> None:
        self.last_output = time.monotonic()
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
