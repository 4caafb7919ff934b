"""What a person sees of a run while it goes on: a dashboard on a terminal, lines elsewhere, or nothing."""

from typing import Protocol, Self

from rich.console import Console

from braidrl.report.dashboard import Dashboard
from braidrl.report.progress import Progress
from braidrl.utils.run_folder import RunFolder


class View(Protocol):
    """Use as a context; call `update` now and then."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def update(self) -> None: ...


class SilentView:
    """Shows nothing: how the run ended is said by who launched it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self) -> None:
        pass


def open_view(
    run: RunFolder,
    max_steps: int,
    after: int = 0,
    quiet: bool = False,
    verbose: bool = False,
    console: Console | None = None,
) -> View:
    """The view of `run` for this console. On a terminal that can move its cursor it is the dashboard, in colours unless
    `NO_COLOR` is set; elsewhere it is a line a step, two with `verbose`; with `quiet` nothing.

    Args:
        after: the step that the run continues after.
    """
    console = console or Console()
    if quiet:
        return SilentView()
    if console.is_terminal and not console.is_dumb_terminal:
        return Dashboard(run, max_steps, console, after)
    return Progress(run, max_steps, console=console, after=after, verbose=verbose)
