"""Estimates of how much an episode of a source contributes to a batch."""

from collections.abc import Iterable
from dataclasses import dataclass

DECAY = 0.5
"""Factor applied to the weight of all observations with each batch, because lengths drift while a policy learns."""


@dataclass
class YieldEstimate:
    """Estimated number of traces per episode (above 1 with several agents) and of tokens per trace.

    Observations change the estimates only when `settle` is called. A strictly on-policy run calls it at moments that do
    not depend on the order in which episodes end.
    """

    tokens_per_trace: float
    """Initially the context limit, an upper bound."""
    traces_per_episode: float = 1.0
    episodes: float = 0.0
    """Decayed number of observed episodes."""
    traces: float = 0.0
    """Decayed number of their eligible traces."""
    measured: float = 0.0
    """Decayed number of traces whose tokens were counted."""
    tokens: float = 0.0
    """Decayed number of their tokens."""

    def observe(self, episodes: int, traces: int) -> None:
        """Add episodes without error and their eligible traces."""
        self.episodes += episodes
        self.traces += traces

    def measure(self, tokens: Iterable[int]) -> None:
        """Add the tokens of each trace, prompts included."""
        for count in tokens:
            self.measured += 1
            self.tokens += count

    def settle(self) -> None:
        """Update the estimates from the observations."""
        if self.episodes:
            self.traces_per_episode = self.traces / self.episodes
        if self.measured:
            self.tokens_per_trace = self.tokens / self.measured

    def fade(self) -> None:
        """Decay the observations. Call it once per shipped batch."""
        self.episodes *= DECAY
        self.traces *= DECAY
        self.measured *= DECAY
        self.tokens *= DECAY
