"""Base classes of algorithms that compare traces: eligibility, advantages and metrics."""

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from verifiers.v1 import Episode, Trace

from braidrl.configs.algorithm import BaseAlgorithmConfig
from braidrl.orchestrator.train.algo.advantage import Array
from braidrl.orchestrator.train.algo.base import Algorithm
from braidrl.orchestrator.train.algo.routing import (
    assign_advantages,
    groups_by_id,
    ineligibility,
    num_trainable_tokens,
)

logger = logging.getLogger(__name__)

ConfigT = TypeVar("ConfigT", bound=BaseAlgorithmConfig)

SHARES = {"groups": "zero_advantage_groups", "traces": "adv_zero_ratio", "tokens": "zero_advantage_tokens"}
"""Metric of the share without advantage, by the unit that it counts."""


@dataclass(frozen=True)
class Attempt:
    """Trace that takes part in a comparison, with its episode."""

    episode: Episode
    trace: Trace


def rewards_of(attempts: list[Attempt]) -> Array:
    """Return the reward of each trace, f64[N]."""
    return np.array([attempt.trace.reward for attempt in attempts], dtype=np.float64)


class CreditingAlgorithm(Algorithm[ConfigT]):
    """Base class of algorithms with one advantage per trace.

    A subclass computes the advantages of a group in `credit`, and calls `assign` from one of the hooks. Traces with an
    error, of an untrainable agent, without sampled tokens or without a finite reward are excluded from comparison, get
    no advantage and are counted. Groups with no remaining traces are skipped.
    """

    def __init__(self, config: ConfigT, clients: object = None) -> None:
        super().__init__(config, clients)
        self.counts: Counter[str] = Counter()
        """Number of events since the previous call of `metrics`, by name."""
        self.means: dict[str, list[float]] = {}
        """Values since the previous call of `metrics`, which reports their means."""
        self._warned: set[str] = set()

    @abstractmethod
    def credit(self, attempts: list[Attempt]) -> Array:
        """Compute the advantages of a group.

        Args:
            attempts: eligible traces, in the order of the group's episodes and their traces.

        Returns:
            f64[N], one advantage per attempt.
        """

    def assign(self, episodes: list[Episode]) -> None:
        """Compute and write the advantages of every group."""
        for attempts in self.compared(episodes):
            self.give(attempts, self.credit(attempts))

    def compared(self, episodes: list[Episode]) -> Iterator[list[Attempt]]:
        """Yield the eligible traces of each group, and count the others by reason."""
        for group in groups_by_id(episodes):
            if len(group) == 1 and self.config.needs_siblings:
                self.warn_once(
                    "a group of one episode has no siblings to compare with, so its advantage is 0 and it trains "
                    "nothing; set group_size to 2 or more"
                )
            if attempts := self._eligible(group):
                yield attempts

    def give(self, attempts: list[Attempt], advantages: Array) -> None:
        """Write the advantages of a group on its traces, and count them."""
        self.counts["groups"] += 1
        self.counts["zero_advantage_groups"] += not advantages.any()
        for attempt, advantage in zip(attempts, advantages, strict=True):
            assign_advantages(attempt.trace, float(advantage))
            tokens = num_trainable_tokens(attempt.trace)
            self.counts.update(traces=1, tokens=tokens)
            if advantage == 0:
                self.counts.update(adv_zero_ratio=1, zero_advantage_tokens=tokens)

    def metrics(self) -> dict[str, float]:
        """Return the metrics since the previous call.

        - `groups`, `traces`, `tokens`: number of compared groups, traces and sampled tokens.
        - `zero_advantage_groups`, `adv_zero_ratio`, `zero_advantage_tokens`: shares of these without advantage,
          in [0, 1].
        - `excluded/REASON`: number of excluded traces.
        - Means of the values that the algorithm passed to `note`.
        """
        counts, self.counts = self.counts, Counter()
        means, self.means = self.means, {}
        metrics = {key: float(value) for key, value in counts.items()}
        for unit, share in SHARES.items():
            if counts[unit]:
                metrics[share] = counts[share] / counts[unit]
        return metrics | {key: float(np.mean(values)) for key, values in means.items()}

    def note(self, name: str, value: float) -> None:
        """Add a value to the mean that `metrics` reports as `name`."""
        self.means.setdefault(name, []).append(value)

    def warn_once(self, message: str) -> None:
        """Log a warning, once per message."""
        if message not in self._warned:
            self._warned.add(message)
            logger.warning("%s", message)

    def _eligible(self, group: list[Episode]) -> list[Attempt]:
        attempts = [Attempt(episode, trace) for episode in group for trace in episode.traces]
        reasons = [ineligibility(attempt.episode, attempt.trace) for attempt in attempts]
        self.counts.update(f"excluded/{reason}" for reason in reasons if reason)
        return [attempt for attempt, reason in zip(attempts, reasons, strict=True) if reason is None]


class ComparingAlgorithm(CreditingAlgorithm[ConfigT]):
    """Base class of algorithms with one advantage per trace, computed when its group is complete."""

    async def score_group(self, episodes: list[Episode]) -> None:
        self.assign(episodes)
