"""The buffer: traces that wait for a batch, and how many more may be under way."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from braidrl.configs.batches import BatchesConfig
from braidrl.orchestrator.pipeline.groups import Group, ReadyTrace
from braidrl.transport.types import TrainingBatch

ROUNDING = 1e-9
"""Shares of a group add up to the group only so exactly."""


@dataclass
class CollectedBatch:
    """The traces of one optimizer step, in dispatch order."""

    step: int
    traces: list[ReadyTrace]

    @property
    def training_batch(self) -> TrainingBatch:
        """What the trainer gets."""
        return TrainingBatch(
            step=self.step, samples=[sample for trace in self.traces for sample in trace.samples]
        )

    @property
    def groups(self) -> list[Group]:
        """The groups that it has a trace of, in dispatch order."""
        return list(dict.fromkeys(trace.group for trace in self.traces))

    @property
    def versions(self) -> str:
        """Which policies sampled it, in words."""
        oldest = [trace.oldest for trace in self.traces if trace.oldest is not None]
        newest = [trace.newest for trace in self.traces if trace.newest is not None]
        if not oldest or not newest:
            return "a frozen model"
        return f"v{min(oldest)}" if min(oldest) == max(newest) else f"v{min(oldest)}-v{max(newest)}"


class Buffer:
    """Traces from the end of their group to their batch, measured in the unit of batches: traces, or tokens.

    While the policy is v, at most `v + 1 + k` batches may be shipped, buffered or in flight, so that what is
    dispatched now is at most k versions old when it trains; with `oversampling_factor` f, another f - 1.

    Strictly on-policy (k = 0), timing must have no say in what is dispatched. So as long as episodes are in flight, a
    group that has ended counts for what it was expected to bring, or for less where it has fewer traces; never for
    more. Then the work that fills the room is the same in whichever order it ends. When all of it has ended, `settle`
    takes the true sizes, and what is still missing is another round.
    """

    def __init__(self, config: BatchesConfig, max_steps: int) -> None:
        self.max_off_policy_steps = config.max_off_policy_steps
        self.max_returns = config.max_returns
        self.max_steps = max_steps
        self.in_tokens = config.token_batch_size is not None
        size = config.token_batch_size if self.in_tokens else config.batch_size
        assert size is not None  # the config has one of them
        self.size = size
        self.surplus = (config.oversampling_factor - 1) * size
        self.shipped = 0
        """Batches of the run that were shipped, by earlier processes too."""
        self.ready: list[ReadyTrace] = []

    # -- how much may run ahead

    def full(self, in_flight: Iterable[Group], version: int) -> bool:
        """Whether the bound allows no group beside those `in_flight` while the policy is `version`."""
        weights = itertools.chain((trace.weight for trace in self.ready), map(self.expected, in_flight))
        # an exact sum does not depend on the order in which groups ended
        return math.fsum(weights) >= self.room(version) * (1 - ROUNDING)

    def room(self, version: int) -> float:
        """What may be buffered or in flight while the policy is `version`."""
        batches = min(version + 1 + self.max_off_policy_steps, self.max_steps) - self.shipped
        return batches * self.size + self.surplus if batches > 0 else 0.0

    def expected(self, group: Group) -> float:
        """What a group in flight counts for."""
        return group.expected * (group.env.yields.tokens_per_trace if self.in_tokens else 1.0)

    # -- in

    def add(self, group: Group, traces: list[ReadyTrace]) -> None:
        """Buffer what a group that has ended brings; until `settle` it counts for no more than was expected of it."""
        for trace in traces:
            trace.weight = self.expected(group) / max(group.expected, len(traces))
        self.ready += traces

    def settle(self) -> None:
        """Count what waits for what it is."""
        for trace in self.ready:
            trace.weight = self._size_of(trace)

    def _size_of(self, trace: ReadyTrace) -> int:
        return trace.tokens if self.in_tokens else 1

    # -- out

    def take(self, step: int) -> CollectedBatch | None:
        """The batch of `step`, once there is enough: the first in dispatch order, after those that were left behind too
        often already. One in tokens has as many traces as it takes to reach its size."""
        if sum(map(self._size_of, self.ready)) < self.size:
            return None
        order = sorted(self.ready, key=lambda trace: (not self.protects(trace.group), trace.group.place))
        totals = itertools.accumulate(map(self._size_of, order))
        count = next(count for count, total in enumerate(totals, start=1) if total >= self.size)
        self.ready = order[count:]
        self.shipped += 1
        return CollectedBatch(step, sorted(order[:count], key=lambda trace: trace.group.place))

    def take_all(self, step: int) -> CollectedBatch:
        """All that waits, as the batch of `step`, however much it is."""
        traces, self.ready = sorted(self.ready, key=lambda trace: trace.group.place), []
        self.shipped += 1
        return CollectedBatch(step, traces)

    def unship(self) -> None:
        """The batch that was taken last trains nothing and is not sent."""
        self.shipped -= 1

    def protects(self, group: Group) -> bool:
        """Whether a group must not be left behind once more."""
        return group.returns >= self.max_returns

    def drop_stale(self, step: int) -> tuple[int, list[Group]]:
        """Drop what is too old for the batch of `step`; returns how many traces, and the groups of which nothing has
        trained and nothing is left."""
        stale = [trace for trace in self.ready if trace.staleness(step) > self.max_off_policy_steps]
        if not stale:
            return 0, []
        self.ready = [trace for trace in self.ready if trace.staleness(step) <= self.max_off_policy_steps]
        left = {trace.group for trace in self.ready}
        lost = {trace.group for trace in stale if not trace.group.used} - left
        return len(stale), sorted(lost, key=lambda group: group.place)

    def describe(self, version: int) -> str:
        """What waits, in words."""
        unit = "tokens" if self.in_tokens else "traces"
        waits = sum(map(self._size_of, self.ready))
        return (
            f"{waits} {unit} buffered of {self.size} a batch, {self.room(version):.0f} may be under way with policy "
            f"v{version}"
        )
