"""Why is nothing learned? Watches for groups without signal, says so, and ends a run that cannot train."""

import logging
from collections import Counter
from collections.abc import Sequence

logger = logging.getLogger(__name__)

SHOWN_ERRORS = 3
"""Most frequent errors that the explanation lists."""


class NoSignalError(RuntimeError):
    """No group has carried any signal for too long."""


class EmptyBatchGuard:
    """Counts groups without signal in a row; the run ends after `max_batches` batches' worth of them, and no fewer
    groups than that (before the first batch, what a group brings in tokens is only guessed)."""

    def __init__(self, batch_size: int, max_batches: int) -> None:
        self.batch_size = batch_size
        self.max_batches = max_batches
        self._clear()

    def _clear(self) -> None:
        self.weight = 0.0
        self.episodes = 0
        self.failures = 0
        self.groups: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.gates: Counter[str] = Counter()

    def failed(self, error: str) -> None:
        """An episode failed."""
        self.failures += 1
        self.errors[error] += 1

    def group(self, weight: float, episodes: int, outcome: str, rejecting: Sequence[str] = ()) -> None:
        """A group of `episodes` ended as `signal`, `no_signal`, `too_few` or `rejected`, by the gates of these names; a
        batch was to get `weight` of it, in its own unit.

        Raises `NoSignalError` with an explanation at the limit.
        """
        if outcome == "signal":
            self._clear()
            return
        self.gates.update(rejecting)
        before = self.weight // self.batch_size
        self.weight += weight
        self.episodes += episodes
        self.groups[outcome] += 1
        enough = self.groups.total() >= self.max_batches
        if enough and self.weight >= self.max_batches * self.batch_size:
            raise NoSignalError(
                f"{self.explain()}. The run stops after {self.max_batches} batches' worth of such groups "
                f"(orchestrator.max_empty_batches)"
            )
        if self.weight // self.batch_size > before:
            logger.warning("%s", self.explain())

    def explain(self) -> str:
        """What is known about the groups since the last one with signal."""
        total = self.groups.total()
        parts = [
            f"no signal in {total} groups ({self.episodes} episodes) in a row: "
            f"{self.groups['no_signal'] / total:.0%} had equal rewards, {self.groups['too_few'] / total:.0%} "
            f"too few episodes without error"
        ]
        if self.gates:
            gates = ", ".join(f"{name} ({count} groups)" for name, count in self.gates.most_common())
            parts.append(f"{self.groups['rejected'] / total:.0%} were rejected by gates: {gates}")
        if self.errors:
            errors = "; ".join(f"{count} x {error}" for error, count in self.errors.most_common(SHOWN_ERRORS))
            parts.append(f"{self.failures} of the episodes failed: {errors}")
        elif self.groups["no_signal"]:
            parts.append(
                "no episode failed: the reward does not tell attempts apart (too easy, too hard, or constant)"
            )
        return ". ".join(parts)
