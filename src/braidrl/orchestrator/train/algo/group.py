"""What algorithms that compare traces have in common: who is compared, what is counted."""

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
"""What is compared, and the metric of its share that has no advantage."""


@dataclass(frozen=True)
class Attempt:
    """A trace that takes part in a comparison."""

    episode: Episode
    trace: Trace


def rewards_of(attempts: list[Attempt]) -> Array:
    """f64[N]: the reward of each trace."""
    return np.array([attempt.trace.reward for attempt in attempts], dtype=np.float64)


class CreditingAlgorithm(Algorithm[ConfigT]):
    """One advantage per trace: subclasses say in `credit` what the eligible traces of a group are worth, and call
    `assign` from the hook whose timing fits.

    Traces with an error, of an untrainable agent, without sampled tokens, or without a finite reward take no
    part, keep no advantage, and are counted. A group of which none is left is no work.
    """

    def __init__(self, config: ConfigT, clients: object = None) -> None:
        super().__init__(config, clients)
        self.counts: Counter[str] = Counter()
        """Events since the last reading of `metrics`."""
        self.means: dict[str, list[float]] = {}
        """Values since the last reading, of which `metrics` reports the mean."""
        self._warned: set[str] = set()

    @abstractmethod
    def credit(self, attempts: list[Attempt]) -> Array:
        """f64[N]: one advantage per attempt of a group, in the order of the group's episodes and their
        traces."""

    def assign(self, episodes: list[Episode]) -> None:
        """Credit the traces of each group."""
        for attempts in self.compared(episodes):
            self.give(attempts, self.credit(attempts))

    def compared(self, episodes: list[Episode]) -> Iterator[list[Attempt]]:
        """The traces of each group that take part; the others are counted."""
        for group in groups_by_id(episodes):
            if len(group) == 1 and self.config.needs_siblings:
                self.warn_once(
                    "a group of one episode has no siblings to be compared with, so its advantage is 0 and it "
                    "trains nothing; set group_size to 2 or more"
                )
            if attempts := self._eligible(group):
                yield attempts

    def give(self, attempts: list[Attempt], advantages: Array) -> None:
        """Write the advantages of a group, one per attempt, and count them."""
        self.counts["groups"] += 1
        self.counts["zero_advantage_groups"] += not advantages.any()
        for attempt, advantage in zip(attempts, advantages, strict=True):
            assign_advantages(attempt.trace, float(advantage))
            tokens = num_trainable_tokens(attempt.trace)
            self.counts.update(traces=1, tokens=tokens)
            if advantage == 0:
                self.counts.update(adv_zero_ratio=1, zero_advantage_tokens=tokens)

    def metrics(self) -> dict[str, float]:
        """`groups`, `traces`, `tokens` (sampled ones), all of which were compared; `zero_advantage_groups`,
        `adv_zero_ratio`, `zero_advantage_tokens` (the shares of them without advantage, in [0, 1]);
        `excluded/REASON` (traces) and what the algorithm itself notes, since the last call."""
        counts, self.counts = self.counts, Counter()
        means, self.means = self.means, {}
        metrics = {key: float(value) for key, value in counts.items()}
        for whole, share in SHARES.items():
            if counts[whole]:
                metrics[share] = counts[share] / counts[whole]
        return metrics | {key: float(np.mean(values)) for key, values in means.items()}

    def note(self, name: str, value: float) -> None:
        """Add a value to a mean of `metrics`."""
        self.means.setdefault(name, []).append(value)

    def warn_once(self, message: str) -> None:
        """Log a warning the first time."""
        if message not in self._warned:
            self._warned.add(message)
            logger.warning("%s", message)

    def _eligible(self, group: list[Episode]) -> list[Attempt]:
        attempts = [Attempt(episode, trace) for episode in group for trace in episode.traces]
        reasons = [ineligibility(attempt.episode, attempt.trace) for attempt in attempts]
        self.counts.update(f"excluded/{reason}" for reason in reasons if reason)
        return [attempt for attempt, reason in zip(attempts, reasons, strict=True) if reason is None]


class ComparingAlgorithm(CreditingAlgorithm[ConfigT]):
    """One advantage per trace, known when its group is complete."""

    async def score_group(self, episodes: list[Episode]) -> None:
        self.assign(episodes)
