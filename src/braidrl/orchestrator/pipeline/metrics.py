"""Metrics of one step of the orchestrator."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from verifiers.v1.trace import Trace

from braidrl.orchestrator.envs.source import FinishedEpisode
from braidrl.orchestrator.train.samples import Flattened
from braidrl.orchestrator.train.turns import Turn

ALWAYS_LOGGED = (
    "episodes/done",
    "episodes/failed",
    "episodes/cancelled",
    "traces/stale",
    "groups/done",
    "groups/no_signal",
    "groups/too_few",
    "groups/rejected",
    "groups/returned",
)
"""Counts that are logged even if they are 0."""


@dataclass
class StepMetrics:
    """Counts and values collected since the last batch."""

    counts: Counter[str] = field(default_factory=Counter)
    rewards: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Rewards of eligible traces by source."""
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Metrics recorded by environments (`@metric`), by `SOURCE/NAME`."""
    turns: list[int] = field(default_factory=list)
    """Number of turns of each eligible trace."""
    tokens: list[int] = field(default_factory=list)
    """Sampled tokens of each eligible trace."""
    seconds: list[float] = field(default_factory=list)
    """Duration of each episode in seconds."""
    samples: list[int] = field(default_factory=list)
    """Number of samples of each flattened trace."""
    continued: list[Turn] = field(default_factory=list)
    """Turns of eligible traces that continue a conversation."""

    def episode(self, env: str, finished: FinishedEpisode, eligible: Sequence[Trace]) -> None:
        """Count one ended episode."""
        self.counts["episodes/done"] += 1
        self.counts["episodes/failed"] += finished.error is not None
        self.seconds.append(finished.seconds)
        for trace in eligible:
            self.rewards[env].append(trace.reward)
            self.turns.append(trace.num_turns)
            self.tokens.append(sum(sum(node.mask) for node in trace.nodes))
            self.continued += finished.turns.get(trace.id, ())
            self.counts["traces/eligible"] += 1
            self.counts["traces/truncated"] += trace.is_truncated
            for name, value in trace.metrics.items():
                if value is not None:
                    self.values[f"{env}/{name}"].append(value)

    def group(self, outcome: str) -> None:
        """Count one ended group and its outcome."""
        self.counts["groups/done"] += 1
        self.counts[f"groups/{outcome}"] += 1

    def flattened(self, flat: Flattened) -> None:
        """Count the samples of one flattened trace and the branches that were refused."""
        self.samples.append(len(flat.samples))
        self.refused(flat.refused.elements())

    def refused(self, reasons: Iterable[str]) -> None:
        """Count the reasons why traces or branches cannot train."""
        self.counts.update(f"refused/{reason}" for reason in reasons)

    def summary(self) -> dict[str, float]:
        """Return the metrics by name."""
        rewards = [reward for values in self.rewards.values() for reward in values]
        metrics = spread("reward", rewards)
        for env, values in self.rewards.items():
            metrics |= spread(f"reward/{env}", values)
        metrics |= {f"metric/{name}": statistics.fmean(values) for name, values in self.values.items()}
        metrics |= dict.fromkeys(ALWAYS_LOGGED, 0.0) | {
            name: float(count) for name, count in self.counts.items()
        }
        metrics["tokens/sampled"] = float(sum(self.tokens))
        metrics["zero_signal"] = _share(self.counts["groups/no_signal"], self.counts["groups/done"])
        metrics["truncated"] = _share(self.counts["traces/truncated"], self.counts["traces/eligible"])
        metrics |= (
            spread("tokens", self.tokens) | spread("turns", self.turns) | spread("seconds", self.seconds)
        )
        return metrics | self._trajectories()

    def _trajectories(self) -> dict[str, float]:
        """Return the mean number of samples per trace and, over the turns that continue a conversation, the share that
        was merged with the previous turn and the share that was rendered again, in total and by reason."""
        metrics = {"trajectories/samples": statistics.fmean(self.samples)} if self.samples else {}
        if self.continued:
            number = len(self.continued)
            reasons = Counter(turn.fallback for turn in self.continued if turn.fallback)
            metrics["trajectories/merged"] = _share(sum(turn.merged for turn in self.continued), number)
            metrics["trajectories/fallback"] = _share(reasons.total(), number)
            metrics |= {
                f"trajectories/fallback/{reason}": _share(count, number) for reason, count in reasons.items()
            }
        return metrics


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the mean and the population standard deviation; empty if there are no values."""
    if not values:
        return {}
    return {f"{name}/mean": statistics.fmean(values), f"{name}/std": statistics.pstdev(values)}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
