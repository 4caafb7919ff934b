"""Progress of an evaluation: a bar on a terminal, ten lines elsewhere."""

from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LINES = 10
"""Lines where there is no terminal."""


class EpisodeProgress:
    """Counts episodes as they end. Use as a context.

    Args:
        total: episodes of the whole evaluation.
    """

    def __init__(self, total: int, console: Console) -> None:
        self.total = total
        self.console = console
        self.done = self.failed = 0
        self.sum = 0.0
        self.bar = Progress(
            TextColumn("episodes"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[line]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.task = self.bar.add_task("episodes", total=total, line="")

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.bar.stop()

    def ended(self, reward: float | None) -> None:
        """One more has ended, with `reward` or (None) with an error."""
        before = LINES * self.done // self.total
        self.done += 1
        if reward is None:
            self.failed += 1
        else:
            self.sum += reward
        if self.console.is_terminal:
            self.bar.update(self.task, completed=self.done, line=self.line)
        elif LINES * self.done // self.total > before:
            self.console.print(f"episodes {self.done}/{self.total}  {self.line}", highlight=False)

    @property
    def line(self) -> str:
        """Mean reward so far, and how many failed."""
        good = self.done - self.failed
        mean = f"reward {self.sum / good:.3f}" if good else "no reward yet"
        return f"{mean}  {self.failed} failed" if self.failed else mean
