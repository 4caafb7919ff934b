"""The buffer: traces that wait for a batch, and the bound on the work that may be buffered or in flight."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from braidrl.configs.batches import BatchesConfig
from braidrl.orchestrator.pipeline.groups import Group, ReadyTrace
from braidrl.transport.types import TrainingBatch

ROUNDING = 1e-9
"""Relative tolerance for sums of trace weights, which are fractions of a group."""


@dataclass
class CollectedBatch:
    """The traces of one optimizer step, in dispatch order."""

    step: int
    traces: list[ReadyTrace]

    @property
    def training_batch(self) -> TrainingBatch:
        """Batch as it is sent to the trainer."""
        return TrainingBatch(
            step=self.step, samples=[sample for trace in self.traces for sample in trace.samples]
        )

    @property
    def groups(self) -> list[Group]:
        """Groups with at least one trace in the batch, in dispatch order."""
        return list(dict.fromkeys(trace.group for trace in self.traces))

    @property
    def versions(self) -> str:
        """Policy versions that sampled the batch, for the log: `v3`, `v2-v3` or `a frozen model`."""
        oldest = [trace.oldest for trace in self.traces if trace.oldest is not None]
        newest = [trace.newest for trace in self.traces if trace.newest is not None]
        if not oldest or not newest:
            return "a frozen model"
        return f"v{min(oldest)}" if min(oldest) == max(newest) else f"v{min(oldest)}-v{max(newest)}"


class Buffer:
    """Traces between the end of their group and their batch, measured in the unit of the batch size: traces or tokens.

    With policy version v and `max_off_policy_steps = k`, at most `v + 1 + k` batches may be shipped, buffered or in
    flight, so that a group dispatched now is at most k versions old when it trains. `oversampling_factor = f` allows
    another f - 1 batches.

    If strictly on-policy (k = 0), timing must not affect what is dispatched. Therefore a group that has ended counts at
    most its expected size while other episodes are in flight, less if it has fewer traces. The set of groups that fill
    the bound is then the same for any order of completion. Once all have ended, `settle` replaces the expected sizes by
    the true ones, and the dispatcher fills up what is still missing.
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
        """Number of batches shipped since the start of the run, including those before a resume."""
        self.ready: list[ReadyTrace] = []

    @property
    def on_policy(self) -> bool:
        """True if the run is strictly on-policy: sampling and training alternate."""
        return self.max_off_policy_steps == 0

    # -- bound on buffered and running work

    def full(self, in_flight: Iterable[Group], version: int) -> bool:
        """Return True if the bound at policy `version` allows no group in addition to `in_flight`."""
        weights = itertools.chain((trace.weight for trace in self.ready), map(self.expected, in_flight))
        # fsum is exactly rounded, so the result does not depend on the order in which groups ended
        return math.fsum(weights) >= self.room(version) * (1 - ROUNDING)

    def room(self, version: int) -> float:
        """Return the maximum size that may be buffered or in flight at policy `version`."""
        batches = min(version + 1 + self.max_off_policy_steps, self.max_steps) - self.shipped
        return batches * self.size + self.surplus if batches > 0 else 0.0

    def expected(self, group: Group) -> float:
        """Return the expected size of a group in flight."""
        return group.expected_traces * (group.env.yield_estimate.tokens_per_trace if self.in_tokens else 1.0)

    # -- in

    def add(self, group: Group, traces: list[ReadyTrace]) -> None:
        """Buffer the traces of an ended group. Until `settle`, together they count at most its expected size."""
        for trace in traces:
            trace.weight = self.expected(group) / max(group.expected_traces, len(traces))
        self.ready += traces

    def settle(self) -> None:
        """Count every buffered trace by its true size."""
        for trace in self.ready:
            trace.weight = self._size_of(trace)

    def _size_of(self, trace: ReadyTrace) -> int:
        return trace.tokens if self.in_tokens else 1

    # -- out

    def take(self, step: int) -> CollectedBatch | None:
        """Return the batch of `step`, or None while too little is buffered.

        Groups that were returned `max_returns` times come first, then dispatch order. A batch measured in tokens takes
        traces until it reaches its size.
        """
        if sum(map(self._size_of, self.ready)) < self.size:
            return None
        order = sorted(self.ready, key=lambda trace: (not self.protects(trace.group), trace.group.sort_key))
        totals = itertools.accumulate(map(self._size_of, order))
        count = next(count for count, total in enumerate(totals, start=1) if total >= self.size)
        self.ready = order[count:]
        self.shipped += 1
        return CollectedBatch(step, sorted(order[:count], key=lambda trace: trace.group.sort_key))

    def take_all(self, step: int) -> CollectedBatch:
        """Return everything buffered as the batch of `step`, whatever its size."""
        traces, self.ready = sorted(self.ready, key=lambda trace: trace.group.sort_key), []
        self.shipped += 1
        return CollectedBatch(step, traces)

    def unship(self) -> None:
        """Undo the count of the last batch, which has no signal and is not sent."""
        self.shipped -= 1

    def resume_at(self, step: int) -> None:
        """Count all batches up to and including that of `step` as shipped."""
        self.shipped = step

    def pending_groups(self) -> list[Group]:
        """Return the buffered groups of which no batch has used a trace yet."""
        return list(dict.fromkeys(trace.group for trace in self.ready if not trace.group.used))

    # -- staleness

    def protects(self, group: Group) -> bool:
        """Return True if a group has been returned `max_returns` times and must not be dropped again."""
        return group.returns >= self.max_returns

    def too_old(self, item: Group | ReadyTrace, step: int) -> bool:
        """Return True if a group or trace exceeds the staleness bound in the batch of `step`."""
        return item.staleness(step) > self.max_off_policy_steps

    def drop_stale(self, step: int) -> tuple[int, list[Group]]:
        """Drop the traces that are too old for the batch of `step`.

        Returns:
            The number of dropped traces, and the groups that lost all their traces before any batch used one.
        """
        stale = [trace for trace in self.ready if self.too_old(trace, step)]
        if not stale:
            return 0, []
        self.ready = [trace for trace in self.ready if not self.too_old(trace, step)]
        left = {trace.group for trace in self.ready}
        lost = {trace.group for trace in stale if not trace.group.used} - left
        return len(stale), sorted(lost, key=lambda group: group.sort_key)

    def describe(self, version: int) -> str:
        """Return the buffered size and the bound, for the status line."""
        unit = "tokens" if self.in_tokens else "traces"
        buffered = sum(map(self._size_of, self.ready))
        return (
            f"{buffered} of {self.size} {unit} buffered for the next batch, at most {self.room(version):.0f} may be "
            f"buffered or in flight with policy v{version}"
        )
