"""Progress of a run in lines, one a step: where there is no terminal, and beside the bar of a short command."""

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
"""What a second line has with `--verbose`, after the reward of each source."""
QUIET_SECONDS = 30.0
"""Without progress for so long, a line says who waits for what."""


class Progress(LiveBar):
    """Follows a run. Use as a context; call `update` now and then."""

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
        """`processes` must all have reported a step before it is shown. Without a terminal, `every` n-th is.
        A resumed run shows only what comes `after` its checkpoint."""
        super().__init__(console or Console(), "step", max_steps, line="starting")
        self.reading = RunReader(run, max_steps, processes, after)
        self.max_steps = max_steps
        self.every = every
        self.verbose = verbose
        self.first: tuple[int, float] | None = None
        """The first step that was shown, and when: time left is reckoned from there, start-up apart."""
        self.spoke = time.monotonic()

    def update(self) -> None:
        """Show the evaluations, and the steps that all processes have reported, since the last call."""
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
        quiet = time.monotonic() - self.spoke >= QUIET_SECONDS
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
        self.spoke = time.monotonic()
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
