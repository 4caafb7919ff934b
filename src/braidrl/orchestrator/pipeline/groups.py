"""Groups: the episodes of one task that are scored together, from dispatch to training samples."""

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
    """Group that has not been dispatched yet."""

    index: int | None
    """Number of the dispatch it belongs to; None to take the next number."""
    env: TrainEnv
    task: vf.Task
    numbers: Sequence[int]
    """Episode numbers within the dispatch."""
    returns: int = 0
    """Number of times that the work was returned to the backlog because it became too old."""

    @classmethod
    def of_task(cls, index: int, env: TrainEnv, task: vf.Task) -> list["Work"]:
        """Return the work of one dispatched task: one group, or one per episode if the barrier is `episode`."""
        numbers = range(env.source.group_size)
        parts = [(number,) for number in numbers] if env.algorithm.barrier == "episode" else [numbers]
        return [cls(index, env, task, part) for part in parts]

    def record(self) -> dict[str, Any]:
        """Return the entry of this work in a checkpoint."""
        return {
            "index": self.index,
            "env": self.env.name,
            "task": self.task.data.idx,
            "numbers": list(self.numbers),
            "returns": self.returns,
        }


@dataclass(eq=False)
class Group:
    """Episodes of one dispatched task that are scored together."""

    index: int
    """Number of the task's dispatch in the run. It determines the order in batches and the seeds."""
    env: TrainEnv
    task: vf.Task
    numbers: Sequence[int]
    """Episode numbers within the dispatch, ascending."""
    returns: int = 0
    """Number of times that the work was returned to the backlog because it became too old."""
    finished: dict[int, FinishedEpisode] = field(default_factory=dict)
    """Ended episodes by number."""
    running: dict[int, asyncio.Task] = field(default_factory=dict)
    """Tasks of the episodes in flight by number."""
    versions: dict[int, int] = field(default_factory=dict)
    """Policy version at the dispatch of each episode."""
    credited: set[str] = field(default_factory=set)
    """Ids of the episodes that `score_batch` has scored."""
    used: bool = False
    """True once a batch has contained one of its traces."""

    @property
    def id(self) -> str:
        """Name of the dispatch. Groups of one dispatched task share it (barrier `episode`)."""
        return f"{self.env.name}-{self.index:06d}"

    @property
    def sort_key(self) -> tuple[int, int]:
        """Unique key that orders groups by dispatch."""
        return self.index, self.numbers[0]

    @property
    def work(self) -> Work:
        """Work that repeats the group under its own number, after a resume."""
        return Work(self.index, self.env, self.task, self.numbers, self.returns)

    @property
    def retry(self) -> Work:
        """Work that repeats the group's task under a new number."""
        return Work(None, self.env, self.task, self.numbers, self.returns + 1)

    @property
    def size(self) -> int:
        """Number of episodes."""
        return len(self.numbers)

    @property
    def expected_traces(self) -> float:
        """Expected number of training traces."""
        return self.size * self.env.yield_estimate.traces_per_episode

    @property
    def waits_for_batch(self) -> bool:
        """True if its credit is known only once the batch is full (barrier `batch`)."""
        return self.env.algorithm.barrier == "batch"

    @property
    def complete(self) -> bool:
        """True if all episodes have ended."""
        return len(self.finished) == self.size

    def key(self, number: int) -> str:
        """Return the deterministic name of an episode."""
        return f"{self.id}/{number}"

    @property
    def episodes(self) -> list[vf.Episode]:
        """Ended episodes in order of their numbers."""
        return [self.finished[number].episode for number in sorted(self.finished)]

    def oldest(self) -> int | None:
        """Return the oldest policy version that sampled, or may still sample, a token of the group, or None.

        An episode in flight counts with the version at its dispatch.
        """
        sampled = [done.oldest for done in self.finished.values() if done.oldest is not None]
        dispatched = [self.versions[number] for number in self.running]
        return min([*sampled, *dispatched], default=None)

    def staleness(self, step: int) -> int:
        """Return the staleness in `step`: `step - 1` minus `oldest()`, 0 if there is none."""
        oldest = self.oldest()
        return 0 if oldest is None else step - 1 - oldest


@dataclass
class ReadyTrace:
    """Trace that counts towards a batch."""

    group: Group
    episode: vf.Episode
    """Episode of the trace."""
    flatten: Callable[[], Flattened]
    """Flattens the trace with the credit it has at the time of the call."""
    samples: list[TrainingSample]
    """Trainable branches; empty if the trace carries no signal and the batch may be smaller."""
    oldest: int | None
    """Oldest policy version that sampled a token of the trace; None for a frozen source."""
    newest: int | None
    """Newest policy version that sampled a token of the trace; None for a frozen source."""
    tokens: int = 0
    """Tokens of the samples, prompts included, at the last `count_tokens`."""
    weight: float = 0.0
    """Share of the buffer's bound that it takes, in the unit of the batch size (traces or tokens)."""

    def staleness(self, step: int) -> int:
        """Return the staleness in `step`: `step - 1` minus `oldest`, 0 for a frozen source."""
        return 0 if self.oldest is None else step - 1 - self.oldest

    def count_tokens(self) -> Self:
        """Set `tokens` from the current samples and return the trace."""
        self.tokens = sum(len(sample.token_ids) for sample in self.samples)
        return self
