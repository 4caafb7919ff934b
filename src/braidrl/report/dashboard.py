"""Terminal dashboard of a running job: progress, rewards, speed, queues and pending waits."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from braidrl.monitors.metrics import source_of
from braidrl.report.progress import QUIET_SECONDS
from braidrl.report.reading import RunReader
from braidrl.report.sparkline import plain, sparkline
from braidrl.utils.run_folder import RunFolder

CURVE = 30
"""Number of bars in a reward curve."""
RECENT = 10
"""Number of steps in a recent mean."""
REDRAW_SECONDS = 0.25
GAP = 4
"""Number of columns between rewards and numbers if both fit side by side."""
BOLD, DIM, WARN = "bold", "dim", "bold yellow"

NUMBERS = (
    ("loss", (("trainer", "loss", "{:+.4f}"),)),
    ("KL to the sampler", (("trainer", "mismatch_kl", "{:.1e}"), ("trainer", "is_approx_k3_kl", "{:.1e}"))),
    ("entropy", (("trainer", "entropy", "{:.3f}"),)),
    ("grad norm", (("trainer", "grad_norm", "{:.3f}"),)),
    (
        "staleness",
        (("orchestrator", "staleness/mean", "{:.2f}"), ("orchestrator", "staleness/max", "at most {:.0f}")),
    ),
    ("trainer", (("trainer", "tokens_per_second", "{:,.0f} tok/s"),)),
    ("groups without signal", (("orchestrator", "zero_signal", "{:.0%}"),)),
    ("truncated", (("orchestrator", "truncated", "{:.0%}"),)),
)
"""Rows for metrics of the last step: title, and (process, name, format) of each value. Missing values are skipped."""


class Dashboard:
    """Dashboard of a run. Use as a context manager and call `update` regularly; there is no drawing thread."""

    def __init__(
        self,
        run: RunFolder,
        max_steps: int,
        console: Console,
        after: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reading = RunReader(run, max_steps, after=after, clock=clock)
        self.console = console
        self.notices: list[str] = []
        self.ended = False
        self._clock = clock
        self._started = self._drawn = clock()
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = True
        self._read()
        self._draw()
        self._live.stop()

    def update(self) -> None:
        """Read new data and redraw, at most once every `REDRAW_SECONDS`."""
        if self._clock() - self._drawn >= REDRAW_SECONDS:
            self._read()
            self._draw()

    def _read(self) -> None:
        _, notices, _ = self.reading.read()
        self.notices += notices

    def _draw(self) -> None:
        self._drawn = self._clock()
        self._live.update(self.render(), refresh=True)

    # -- layout

    def render(self) -> RenderableType:
        """Return the whole dashboard."""
        rewards, numbers = self._rewards(), self._numbers()
        width = GAP + sum(self.console.measure(each).maximum for each in (rewards, numbers))
        middle = Table.grid(padding=(0, GAP) if width <= self.console.width else (0, 0, 1, 0))
        if width <= self.console.width:
            middle.add_row(rewards, numbers)
        else:
            middle.add_row(rewards)
            middle.add_row(numbers)
        parts: list[RenderableType] = [self._head(), Text(), middle]
        if not self.ended:
            parts += [Text(), self._waits()]
        parts += [Text(notice, WARN) for notice in self.notices]
        return Group(*parts)

    def _head(self) -> RenderableType:
        reading = self.reading
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=reading.max_steps, completed=reading.step, width=24)
        left = reading.seconds_left
        head.add_row(
            f"step {reading.step}/{reading.max_steps}",
            bar,
            clock_time(self._clock() - self._started),
            Text("" if left is None or self.ended else f"{clock_time(left)} left", DIM),
        )
        return Group(Text(str(reading.run.root), BOLD, overflow="fold"), head)

    def _rewards(self) -> RenderableType:
        """Return a table with one row per training source and one per evaluated source."""
        table = _table("reward", "over the steps", "last", f"last {RECENT}")
        rows = self.reading.rows["orchestrator"]
        newest = rows[max(rows)] if rows else {}
        sources = [source for name in newest if (source := source_of("orchestrator", name)) is not None]
        for title, name in [(source, f"reward/{source}/mean") for source in sources] or [
            ("all", "reward/mean")
        ]:
            curve = self.reading.curve("orchestrator", name)
            recent = curve[-RECENT:]
            if curve:
                mean = f"{sum(recent) / len(recent):.3f}"
                table.add_row(title, self._bars(curve), f"{curve[-1]:.3f}", mean)
        for source, curve, last in self._evaluated():
            table.add_row(f"held out: {source}", self._bars(curve), last, "")
        if not table.row_count:
            table.add_row(Text("no step yet", DIM))
        return table

    def _evaluated(self) -> Iterator[tuple[str, list[float], str]]:
        """Yield each evaluated source with its curve and its last reward, formatted with the 95% interval."""
        rows = self.reading.evaluations
        sources = {
            key: source for row in rows for key in row if (source := source_of("eval", key)) is not None
        }
        for key, source in sources.items():
            known = [row for row in rows if row.get(key) is not None]
            if known:
                ci95 = known[-1].get(f"{key.removesuffix('mean')}ci95")
                interval = "" if ci95 is None else f" ± {ci95:.3f}"
                last = f"{known[-1][key]:.3f}{interval} (v{known[-1]['step']})"
                yield source, [row[key] for row in known], last

    def _numbers(self) -> RenderableType:
        """Return a table with metrics of the last step and current queue sizes."""
        table = _table("last step", "")
        for title, metrics in NUMBERS:
            values = [(self.reading.value(process, name), text) for process, name, text in metrics]
            shown = [text.format(value) for value, text in values if value is not None]
            if shown:
                table.add_row(title, ", ".join(shown))
        sampled, seconds = (
            sum(self.reading.curve("orchestrator", name)[-RECENT:])
            for name in ("tokens/sampled", "seconds/step")
        )
        if seconds:
            table.add_row("sampler", f"{sampled / seconds:,.0f} tok/s over the last {RECENT} steps")
        live = self.reading.live
        if live is not None and live.fresh and not self.ended:
            evaluating = f", {live.evaluating} of evaluations" if live.evaluating else ""
            table.add_row("episodes in flight", f"{live.episodes} of {live.most_episodes}{evaluating}")
            table.add_row("traces buffered", str(live.buffered))
        return table

    def _waits(self) -> RenderableType:
        """Return a table with the current activity of each process."""
        table = Table.grid(padding=(0, 2))
        live = self.reading.live
        if live is None or not live.fresh:
            table.add_row(Text("starting: loading models and opening environments", DIM))
            return table
        table.add_row(Text("trainer", BOLD), self._trainer())
        table.add_row(Text("orchestrator", BOLD), live.waits)
        queue = f", {live.calls_waiting} waiting for a replica" if live.calls_waiting else ""
        table.add_row(
            Text("inference", BOLD), f"serves v{live.version}; {live.calls} model calls in flight{queue}"
        )
        if live.idle >= QUIET_SECONDS:
            table.add_row(Text("!", WARN), Text(f"no progress for {live.idle:.0f} s", WARN))
        return table

    def _trainer(self) -> str:
        """Describe what the trainer is doing. It removes a batch after its step, so a published batch is in use."""
        step = max(self.reading.rows["trainer"], default=self.reading.step) + 1
        if step > self.reading.max_steps:
            return "done"
        waits = step not in self.reading.run.published("batches")
        return f"waits for the batch of step {step}" if waits else f"computes step {step}"

    def _bars(self, values: list[float]) -> str:
        bars = sparkline(values, CURVE)
        return plain(bars) if self.console.options.ascii_only else bars


def clock_time(seconds: float) -> str:
    """Format seconds as `0:01:05`, preceded by the number of days if there are any."""
    return str(timedelta(seconds=round(seconds)))


def _table(*header: str) -> Table:
    """Return an empty table without lines."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=BOLD, show_edge=False)
    for name in header:
        table.add_column(name)
    return table
