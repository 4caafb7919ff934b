"""A group: the episodes of one task that are compared, from dispatch to its samples."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import verifiers.v1 as vf

from braidrl.orchestrator.envs import Finished, TrainEnv
from braidrl.orchestrator.train.samples import Flattened
from braidrl.transport.types import TrainingSample


@dataclass(eq=False)
class Group:
    """One dispatched task of one source."""

    index: int
    """Number of its dispatch in the run: its place in batches, and the root of its seeds."""
    env: TrainEnv
    task: vf.Task
    finished: dict[int, Finished] = field(default_factory=dict)
    """Episodes that ended, by their number in the group."""
    running: dict[int, asyncio.Task] = field(default_factory=dict)
    """Episodes in flight, by their number in the group."""
    versions: dict[int, int] = field(default_factory=dict)
    """Policy version at the dispatch of each episode."""
    used: bool = False
    """Whether a trace of it was in a batch."""

    @property
    def id(self) -> str:
        return f"{self.env.name}-{self.index:06d}"

    @property
    def size(self) -> int:
        return self.env.source.group_size

    @property
    def expected(self) -> float:
        """Training traces that it is expected to make."""
        return self.size * self.env.yields.traces_per_episode

    @property
    def waits_for_batch(self) -> bool:
        """Whether its credit is known only when a whole batch is there."""
        return self.env.algorithm.barrier == "batch"

    @property
    def complete(self) -> bool:
        return len(self.finished) == self.size

    def key(self, number: int) -> str:
        """Deterministic name of one of its episodes."""
        return f"{self.id}/{number}"

    @property
    def episodes(self) -> list[vf.Episode]:
        """Its ended episodes, in order of their numbers."""
        return [self.finished[number].episode for number in sorted(self.finished)]

    def oldest(self) -> int | None:
        """Oldest policy version that a token of it was, or may be, sampled by; None before the first."""
        sampled = [done.oldest for done in self.finished.values() if done.oldest is not None]
        dispatched = [self.versions[number] for number in self.running]
        return min([*sampled, *dispatched], default=None)


@dataclass
class ReadyTrace:
    """A trace that counts towards a batch."""

    group: Group
    episode: vf.Episode
    """Whose trace it is."""
    cut: Callable[[], Flattened]
    """Flattens it with the signal that it has by then."""
    samples: list[TrainingSample]
    """Its trainable branches; none when it carries no signal and the batch may be smaller."""
    oldest: int | None
    """Oldest policy version that sampled a token of it; None for a frozen source."""
    newest: int | None
    """Newest one."""

    def staleness(self, step: int) -> int:
        """Version being trained in `step` minus the oldest version that sampled a token."""
        return 0 if self.oldest is None else step - 1 - self.oldest
