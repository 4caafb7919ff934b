"""A bar that what counts something shows on a terminal that can move its cursor; nothing elsewhere."""

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
    """Use as a context; `self.bar` and `self.task` are rich's, with a field `line` that stands behind the bar."""

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
