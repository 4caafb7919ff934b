"""How well tasks went: mean rewards of groups."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from verifiers.v1 import Episode

from braidrl.orchestrator.train.algo.routing import eligible_traces


def rewards_of(group: Sequence[Episode]) -> list[float]:
    """The rewards of the traces that take part in training (`eligible_traces`); failed ones have none."""
    return [trace.reward for trace in eligible_traces(group)]


def mean_reward(group: Sequence[Episode]) -> float | None:
    """Mean of `rewards_of`; None where there are none."""
    rewards = rewards_of(group)
    return statistics.fmean(rewards) if rewards else None


def between(reward: float, above: float | None, below: float | None) -> bool:
    """Whether a reward lies between two bounds, which are excluded; None: no bound."""
    return (above is None or reward > above) and (below is None or reward < below)


@dataclass(frozen=True)
class LatestGroup:
    """What the latest group of a task got."""

    group: str | None
    """Its id."""
    mean: float
    count: int
    """Rewards that the mean is of."""


class LatestRewards:
    """The mean reward of each task's latest group that had any, by the number of the task.

    Episodes of one dispatch are one group, even where their algorithm waits for none of them and they come one by one.

    Args:
        limit: tasks that are remembered, the latest ones; None: all.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._latest: dict[int, LatestGroup] = {}

    def observe(self, group: Sequence[Episode]) -> tuple[int, float] | None:
        """Take in a group; returns the number of its task and what that got by now, or None if it has no reward."""
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
        """The number and the mean of every task that has one."""
        return ((number, latest.mean) for number, latest in self._latest.items())

    def state(self) -> list[Any]:
        """JSON-serialisable."""
        return [[number, item.group, item.mean, item.count] for number, item in self._latest.items()]

    def load(self, state: Iterable[Any]) -> None:
        """Restore `state`."""
        self._latest = {number: LatestGroup(group, mean, count) for number, group, mean, count in state}


def task_number(group: Sequence[Episode]) -> int | None:
    """The number of a group's task in its taskset."""
    return group[0].task.data.idx if group else None
