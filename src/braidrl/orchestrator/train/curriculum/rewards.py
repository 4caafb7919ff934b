"""Mean rewards of groups and tasks."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from verifiers.v1 import Episode

from braidrl.orchestrator.train.algo.routing import eligible_traces


def rewards_of(group: Sequence[Episode]) -> list[float]:
    """Return the rewards of the eligible traces of a group."""
    return [trace.reward for trace in eligible_traces(group)]


def mean_reward(group: Sequence[Episode]) -> float | None:
    """Return the mean reward of the eligible traces of a group, or None without one."""
    rewards = rewards_of(group)
    return statistics.fmean(rewards) if rewards else None


def between(reward: float, above: float | None, below: float | None) -> bool:
    """Return True if above < reward < below. None means no bound."""
    return (above is None or reward > above) and (below is None or reward < below)


@dataclass(frozen=True)
class LatestGroup:
    """Mean reward of the latest group of a task."""

    group: str | None
    """Id of the group."""
    mean: float
    count: int
    """Number of rewards in the mean."""


class LatestRewards:
    """Mean reward of the latest group of each task, by task number. Groups without a reward are ignored.

    Algorithms with the barrier `episode` pass the episodes of a group separately. They are added to the same mean.

    Args:
        limit: maximum number of tasks to remember, most recent first, or None for all.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._latest: dict[int, LatestGroup] = {}

    def observe(self, group: Sequence[Episode]) -> tuple[int, float] | None:
        """Add a group. Returns its task number and the updated mean, or None if it has no reward."""
        rewards, number = rewards_of(group), task_number(group)
        if not rewards or number is None:
            return None
        group_id = group[0].group.id if group[0].group else None
        before = self._latest.pop(number, None)
        if before is not None and before.group == group_id is not None:
            rewards += [before.mean] * before.count
        latest = self._latest[number] = LatestGroup(group_id, statistics.fmean(rewards), len(rewards))
        if self.limit is not None and len(self._latest) > self.limit:
            del self._latest[next(iter(self._latest))]
        return number, latest.mean

    def means(self) -> Iterable[tuple[int, float]]:
        """Return (task number, mean reward) of every remembered task."""
        return ((number, latest.mean) for number, latest in self._latest.items())

    def state(self) -> list[Any]:
        """Return the state as JSON-serialisable data."""
        return [[number, item.group, item.mean, item.count] for number, item in self._latest.items()]

    def load(self, state: Iterable[Any]) -> None:
        """Restore the state returned by `state`."""
        self._latest = {number: LatestGroup(group, mean, count) for number, group, mean, count in state}


def task_number(group: Sequence[Episode]) -> int | None:
    """Return the task number of a group, or None for an empty group or a task without one."""
    return group[0].task.data.idx if group else None
