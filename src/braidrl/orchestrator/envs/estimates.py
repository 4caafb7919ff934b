"""What an episode of a source brings to a batch, as far as is known."""

from collections.abc import Iterable
from dataclasses import dataclass

MEMORY = 0.5
"""What is left of an observation after another batch: lengths drift while a policy learns."""


@dataclass
class YieldEstimate:
    """Traces an episode (one with a single agent, more with several) and tokens a trace, learnt from those that ended.

    The estimates follow what was observed only when `settle` is called. A strictly on-policy run does so at moments
    that do not depend on the order in which episodes end.
    """

    tokens_per_trace: float
    """At first a guess from above: the context limit."""
    traces_per_episode: float = 1.0
    episodes: float = 0.0
    traces: float = 0.0
    measured: float = 0.0
    """Traces whose tokens were counted."""
    tokens: float = 0.0

    def observe(self, episodes: int, traces: int) -> None:
        """Count episodes without error and their eligible traces."""
        self.episodes += episodes
        self.traces += traces

    def measure(self, tokens: Iterable[int]) -> None:
        """Count the tokens of traces, prompts included."""
        for count in tokens:
            self.measured += 1
            self.tokens += count

    def settle(self) -> None:
        """Let the estimates follow what was observed."""
        if self.episodes:
            self.traces_per_episode = self.traces / self.episodes
        if self.measured:
            self.tokens_per_trace = self.tokens / self.measured

    def fade(self) -> None:
        """A batch was shipped: what was observed weighs less from now on."""
        self.episodes *= MEMORY
        self.traces *= MEMORY
        self.measured *= MEMORY
        self.tokens *= MEMORY
