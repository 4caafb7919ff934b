"""Progress bar shown only on terminals that can move their cursor."""

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


class LiveBar:
    """Base class of progress displays. Use as a context manager.

    `self.bar` and `self.task` are rich's progress bar and task. The task's field `line` is the text after the bar.
    """

    def __init__(self, console: Console, unit: str, total: int, line: str = "") -> None:
        self.console = console
        self.draws = console.is_terminal and not console.is_dumb_terminal
        self.bar = Progress(
            TextColumn(unit),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[line]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.task = self.bar.add_task(unit, total=total, line=line)

    def __enter__(self) -> Self:
        if self.draws:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.draws:
            self.bar.stop()
