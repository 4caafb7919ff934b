"""A group: the episodes of one task that wait for each other, from dispatch to their samples."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import verifiers.v1 as vf

from braidrl.orchestrator.envs.source import FinishedEpisode, TrainEnv
from braidrl.orchestrator.train.samples import Flattened
from braidrl.transport.types import TrainingSample


@dataclass(frozen=True)
class Work:
    """A group that is yet to be dispatched."""

    index: int | None
    """Number of the dispatch that it belongs to; None: a new one."""
    env: TrainEnv
    task: vf.Task
    numbers: Sequence[int]
    """Its episodes."""
    returns: int = 0
    """How often it was started before and got too old."""

    @classmethod
    def of_task(cls, index: int, env: TrainEnv, task: vf.Task) -> list["Work"]:
        """All of a task's episodes: together where an algorithm waits for siblings, else each by itself."""
        whole = range(env.source.group_size)
        alone = env.algorithm.barrier == "episode"
        return [cls(index, env, task, numbers) for numbers in ([(n,) for n in whole] if alone else [whole])]

    def record(self) -> dict[str, Any]:
        """What a checkpoint says of it."""
        return {
            "index": self.index,
            "env": self.env.name,
            "task": self.task.data.idx,
            "numbers": list(self.numbers),
            "returns": self.returns,
        }


@dataclass(eq=False)
class Group:
    """Episodes of one dispatched task that wait for each other."""

    index: int
    """Number of the task's dispatch in the run: its place in batches, and the root of its seeds."""
    env: TrainEnv
    task: vf.Task
    numbers: Sequence[int]
    """Its episodes, by their number among all those of the dispatch, in order."""
    returns: int = 0
    """How often its work was started before and got too old."""
    finished: dict[int, FinishedEpisode] = field(default_factory=dict)
    """Episodes that ended, by number."""
    running: dict[int, asyncio.Task] = field(default_factory=dict)
    """Episodes in flight, by number."""
    versions: dict[int, int] = field(default_factory=dict)
    """Policy version at the dispatch of each episode."""
    credited: set[str] = field(default_factory=set)
    """Ids of the episodes that were scored with a batch."""
    used: bool = False
    """Whether a trace of it was in a batch."""

    @property
    def id(self) -> str:
        """Name of the dispatch: episodes of one task have it in common, whether or not they wait for each other."""
        return f"{self.env.name}-{self.index:06d}"

    @property
    def place(self) -> tuple[int, int]:
        """What orders groups by dispatch, and tells them apart."""
        return self.index, self.numbers[0]

    @property
    def work(self) -> Work:
        """What dispatches it as it is, after a resume."""
        return Work(self.index, self.env, self.task, self.numbers, self.returns)

    @property
    def again(self) -> Work:
        """What dispatches its task once more, under another number."""
        return Work(None, self.env, self.task, self.numbers, self.returns + 1)

    @property
    def size(self) -> int:
        return len(self.numbers)

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

    def staleness(self, step: int) -> int:
        """Version being trained in `step` minus the oldest that sampled, or may sample, a token of it."""
        oldest = self.oldest()
        return 0 if oldest is None else step - 1 - oldest


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
    tokens: int = 0
    """Tokens of its samples, prompts included, when it was counted."""
    weight: float = 0.0
    """What it counts for against the room of the run, in the unit of batches."""

    def staleness(self, step: int) -> int:
        """Version being trained in `step` minus the oldest version that sampled a token."""
        return 0 if self.oldest is None else step - 1 - self.oldest

    def recounted(self) -> Self:
        """Itself, once it has counted the tokens of its samples."""
        self.tokens = sum(len(sample.token_ids) for sample in self.samples)
        return self
