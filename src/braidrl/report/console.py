"""Console view of a running job: a dashboard on a terminal, lines elsewhere, or nothing."""

from typing import Protocol, Self

from rich.console import Console

from braidrl.report.dashboard import Dashboard
from braidrl.report.progress import Progress
from braidrl.utils.run_folder import RunFolder


class View(Protocol):
    """Console view. Use as a context manager and call `update` regularly."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def update(self) -> None: ...


class SilentView:
    """View without output. The launcher reports how the run ended."""

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
    """Return the view of `run` for a console.

    This is the dashboard on a terminal that can move its cursor (without colours if `NO_COLOR` is set). Elsewhere it is
    one line per step, or two with `verbose`. With `quiet` there is no output.

    Args:
        after: last step before a resumed run, 0 for a new one.
    """
    console = console or Console()
    if quiet:
        return SilentView()
    if console.is_terminal and not console.is_dumb_terminal:
        return Dashboard(run, max_steps, console, after)
    return Progress(run, max_steps, console=console, after=after, verbose=verbose)
