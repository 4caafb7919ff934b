"""Progress of an evaluation: a progress bar on a terminal, ten lines elsewhere."""

from rich.console import Console

from braidrl.report.live import LiveBar

LINES = 10
"""Number of lines printed without a terminal."""


class EpisodeProgress(LiveBar):
    """Counter of finished episodes. Use as a context manager.

    Args:
        total: number of episodes of the whole evaluation.
    """

    def __init__(self, total: int, console: Console) -> None:
        super().__init__(console, "episodes", total)
        self.total = total
        self.done = self.failed = 0
        self.sum = 0.0

    def ended(self, reward: float | None) -> None:
        """Count a finished episode; `reward` is None if it failed."""
        before = LINES * self.done // self.total
        self.done += 1
        if reward is None:
            self.failed += 1
        else:
            self.sum += reward
        if self.draws:
            self.bar.update(self.task, completed=self.done, line=self.line)
        elif LINES * self.done // self.total > before:
            self.console.print(f"episodes {self.done}/{self.total}  {self.line}", highlight=False)

    @property
    def line(self) -> str:
        """Mean reward so far and number of failed episodes."""
        good = self.done - self.failed
        mean = f"reward {self.sum / good:.3f}" if good else "no reward yet"
        return f"{mean}  {self.failed} failed" if self.failed else mean
