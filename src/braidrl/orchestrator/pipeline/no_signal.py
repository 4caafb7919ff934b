"""Detection of groups without signal: logs an explanation and ends a run that cannot train."""

import logging
from collections import Counter
from collections.abc import Sequence

logger = logging.getLogger(__name__)

SHOWN_ERRORS = 3
"""Number of the most frequent errors that the explanation lists."""


class NoSignalError(RuntimeError):
    """Too many consecutive groups had no signal."""


class EmptyBatchGuard:
    """Counter of consecutive groups without signal, which ends the run after `max_batches` batches' worth of them.

    At least `max_batches` groups are required as well, because until the first batch the size of a group in tokens is
    only a guess.
    """

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

    def record_failure(self, error: str) -> None:
        """Count a failed episode and its error."""
        self.failures += 1
        self.errors[error] += 1

    def record_group(self, weight: float, episodes: int, outcome: str, rejecting: Sequence[str] = ()) -> None:
        """Count an ended group; one with signal resets the counter.

        Args:
            weight: expected size of the group, in the unit of the batch size (traces or tokens).
            episodes: its number of episodes.
            outcome: `signal`, `no_signal`, `too_few` or `rejected`.
            rejecting: names of the gates that rejected it.

        Raises:
            NoSignalError: the limit is reached. The message explains why the groups had no signal.
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
                f"{self.explain()}. The run stops after {self.max_batches} batches' worth of groups without signal; "
                "fix the cause, or raise orchestrator.max_empty_batches"
            )
        if self.weight // self.batch_size > before:
            logger.warning("%s", self.explain())

    def explain(self) -> str:
        """Return a summary of the groups since the last one with signal."""
        total = self.groups.total()
        parts = [
            f"no signal in {total} groups ({self.episodes} episodes) in a row: "
            f"{self.groups['no_signal'] / total:.0%} had equal rewards, {self.groups['too_few'] / total:.0%} "
            f"had too few episodes without error"
        ]
        if self.gates:
            gates = ", ".join(f"{name} ({count} groups)" for name, count in self.gates.most_common())
            parts.append(f"{self.groups['rejected'] / total:.0%} were rejected by gates: {gates}")
        if self.errors:
            errors = "; ".join(f"{count} x {error}" for error, count in self.errors.most_common(SHOWN_ERRORS))
            parts.append(f"{self.failures} of the episodes failed: {errors}")
        elif self.groups["no_signal"]:
            parts.append(
                "no episode failed: the reward is the same for all attempts at a task (too easy, too hard, or constant)"
            )
        return ". ".join(parts)
