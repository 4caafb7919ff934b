"""The sink: turns episodes into batches. Groups are assembled, scored, gated, flattened and filtered for signal."""

import logging
from collections.abc import Iterable, Sequence
from functools import partial

from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.orchestrator.envs.source import FinishedEpisode
from braidrl.orchestrator.pipeline.buffer import Buffer, CollectedBatch
from braidrl.orchestrator.pipeline.groups import Group, ReadyTrace
from braidrl.orchestrator.pipeline.metrics import StepMetrics
from braidrl.orchestrator.pipeline.no_signal import EmptyBatchGuard
from braidrl.orchestrator.pipeline.records import EndedGroups, GroupOutcome
from braidrl.orchestrator.pipeline.scoring import (
    eligible,
    score_batch,
    score_episode,
    score_group,
    waiting_for_batch,
)
from braidrl.orchestrator.train.algo.routing import ineligibility
from braidrl.orchestrator.train.samples import drop_zero_signal, flatten_trace

logger = logging.getLogger(__name__)


class Sink:
    """Collects batches of `batch_size` training traces, or `token_batch_size` tokens, in dispatch order.

    A trace counts towards a batch if it is eligible (`ineligibility`) and carries signal. With
    `constant_trainer_batch_size = false`, traces without signal count too and make the batch smaller. Traces with
    barrier `batch` count before their signal is known and also make the batch smaller if they have none. Remaining
    traces wait for the next batch until they are older than `max_off_policy_steps`.
    """

    def __init__(self, config: OrchestratorConfig) -> None:
        self.config = config
        self.buffer = Buffer(config, config.max_steps)
        self.last = EndedGroups()
        """Groups that ended since the last `take_ended`."""
        self.unobserved: list[Group] = []
        """Complete groups that their curricula have not observed yet."""
        self.metrics = StepMetrics()
        self.empty_batches = EmptyBatchGuard(self.buffer.size, config.max_empty_batches)

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics since the last call and reset them."""
        metrics, self.metrics = self.metrics, StepMetrics()
        return metrics.summary()

    def take_ended(self) -> EndedGroups:
        """Return the groups that ended since the last call."""
        ended, self.last = self.last, EndedGroups()
        return ended

    # -- progress

    @property
    def next_step(self) -> int:
        """Step of the batch that is being collected."""
        return self.buffer.shipped + 1

    @property
    def buffered(self) -> int:
        """Number of traces that wait for a batch."""
        return len(self.buffer.ready)

    def resume_at(self, step: int) -> None:
        """Count all batches up to and including that of `step` as shipped."""
        self.buffer.resume_at(step)

    def fills_batch(self, groups: Iterable[Group]) -> bool:
        """Return True if `groups` and the buffer are expected to fill the next batch of a strictly on-policy run."""
        # strictly on-policy, the policy version equals the number of shipped batches
        return self.buffer.full(groups, version=self.buffer.shipped)

    # -- groups

    def count_dispatched(self) -> None:
        """Count one dispatched group."""
        self.metrics.counts["groups/dispatched"] += 1

    def cancel(self, groups: Iterable[Group]) -> None:
        """Record groups that became too old while episodes were in flight. The caller stops their episodes."""
        for group in groups:
            self.metrics.counts["episodes/cancelled"] += group.size - len(group.finished)
            self._end(group, "stale")
            self.last.outcomes.append(GroupOutcome(group, "stale"))

    def return_groups(self, groups: Sequence[Group]) -> None:
        """Count groups whose tasks the caller has queued again."""
        self.metrics.counts["groups/returned"] += len(groups)

    # -- episodes in

    async def arrive(self, group: Group, number: int, finished: FinishedEpisode) -> None:
        """Score an ended episode and add it to its group. If scoring fails, the episode is marked as failed."""
        episode = finished.episode
        await score_episode(group.env.algorithm, finished)
        group.finished[number] = finished
        self.metrics.episode(group.env.name, finished, eligible(finished))
        reasons = (ineligibility(episode, trace) for trace in episode.traces if trace.agent.trainable)
        self.metrics.refused(reason for reason in reasons if reason)
        if finished.error is not None:
            self.empty_batches.record_failure(finished.error)

    async def complete(self, group: Group) -> None:
        """Score a complete group and buffer its training traces if every gate of its curriculum admits it.

        A group with too few episodes without error has no advantages. Only its samples with signal that needs no
        siblings, such as observations of `echo`, are buffered.

        Raises:
            NoSignalError: too many consecutive groups had no signal.
        """
        counts = [len(eligible(finished)) for finished in group.finished.values()]
        survivors = sum(count > 0 for count in counts)
        enough = survivors >= group.env.min_survivors
        waits = group.waits_for_batch and enough
        group.env.yield_estimate.observe(survivors, sum(counts))
        traces: list[ReadyTrace] = []
        rejecting: list[str] = []
        if survivors:
            await score_group(group)
            rejecting = group.env.curriculum.rejecting(group.episodes)
            traces = [] if rejecting else self._flatten(group)
        if not waits:
            self._drop_zero_signal(traces)
        signal = any(trace.samples for trace in traces)
        outcome = (
            "too_few" if not enough else "rejected" if rejecting else "signal" if signal else "no_signal"
        )
        self._end(group, outcome)
        if not (
            signal and waits
        ):  # a group with barrier `batch` has no final signal yet: `credit` records its batch
            expected = self.buffer.expected(group)
            self.empty_batches.record_group(expected, group.size, "signal" if signal else outcome, rejecting)
        if self.config.constant_trainer_batch_size or not enough:
            traces = [trace.count_tokens() for trace in traces if trace.samples]
        self._buffer(group, traces, outcome)

    def _end(self, group: Group, outcome: str) -> None:
        """Record that no episode of a group runs any more."""
        self.last.groups.append((group, outcome))
        self.metrics.group(outcome)

    def _buffer(self, group: Group, traces: list[ReadyTrace], outcome: str) -> None:
        self.buffer.add(group, traces)
        if not traces:
            self.last.outcomes.append(GroupOutcome(group, outcome))
        self.unobserved.append(group)
        if not self.buffer.on_policy:
            self._settle()

    def _settle(self) -> None:
        """Update curricula and yield estimates from the complete groups, in dispatch order.

        A strictly on-policy run calls this only once all episodes have ended, so that timing does not affect what is
        dispatched next.
        """
        for group in sorted(self.unobserved, key=lambda group: group.sort_key):
            group.env.curriculum.observe(group.episodes)
            group.env.yield_estimate.settle()
        self.unobserved.clear()
        self.buffer.settle()

    def _flatten(self, group: Group) -> list[ReadyTrace]:
        """Return the group's eligible traces as training samples."""
        ready: list[ReadyTrace] = []
        for _, finished in sorted(group.finished.items()):
            for trace in eligible(finished):
                versions = finished.versions(trace.id) if group.env.live else []
                # kept with the trace: samples of barrier `batch` are flattened again once their credit is final
                flatten = partial(
                    flatten_trace,
                    trace,
                    seq_len=self.config.seq_len,
                    temperature=group.env.source.sampling.temperature,
                    env=group.env.name,
                    group_id=group.id,
                    episode_id=finished.episode.id,
                    versions=versions,
                    heads=None if group.env.head_size is None else finished.heads.get(trace.id, {}),
                )
                flat = flatten()
                self.metrics.flattened(flat)
                if flat.samples:
                    span = (min(versions, default=None), max(versions, default=None))
                    ready.append(
                        ReadyTrace(group, finished.episode, flatten, flat.samples, *span).count_tokens()
                    )
        group.env.yield_estimate.measure(trace.tokens for trace in ready)
        return ready

    def _drop_zero_signal(self, traces: list[ReadyTrace]) -> None:
        """Remove tokens without signal from the samples, and samples without any other tokens."""
        for trace in traces:
            kept = (drop_zero_signal(sample) for sample in trace.samples)
            trace.samples = [sample for sample in kept if sample is not None]
            self.metrics.counts["traces/no_signal"] += not trace.samples

    # -- batches out

    def take(self, step: int) -> CollectedBatch | None:
        """Return the batch of `step`, or None while it is not full. Batches without any signal are skipped.

        In a strictly on-policy run, call it only when no episode is in flight.
        """
        if self.buffer.on_policy:
            self._settle()
        while (batch := self.buffer.take(step)) is not None:
            if any(trace.samples for trace in batch.traces):
                return batch
            self._skip(batch)
        return None

    def take_all(self, step: int) -> CollectedBatch:
        """Return everything buffered as the batch of `step`, whatever its size. No episode may be in flight."""
        self._settle()
        return self.buffer.take_all(step)

    async def credit(self, batch: CollectedBatch) -> bool:
        """Run `score_batch` for the traces with barrier `batch` and remove what then carries no signal.

        Returns:
            False if nothing is left. The batch is then skipped.

        Raises:
            NoSignalError: too many consecutive batches had no signal.
        """
        waiting = waiting_for_batch(batch.traces)
        for env, traces in waiting.items():
            await score_batch(env.algorithm, traces, batch.step)
            for trace in traces:
                flat = trace.flatten()
                del flat.refused["too_long"]  # already counted when the group was complete
                self.metrics.refused(flat.refused.elements())
                trace.samples = flat.samples
            self._drop_zero_signal(traces)
        signal = any(trace.samples for trace in batch.traces)
        if waiting:
            outcome = "signal" if signal else "no_signal"
            self.empty_batches.record_group(self.buffer.size, len(batch.traces), outcome)
        if signal:
            self._conclude(batch)
        else:
            self._skip(batch)
        return signal

    def _conclude(self, batch: CollectedBatch) -> None:
        """Record the outcome of the groups of a batch, except those that an earlier batch has recorded."""
        trained = {trace.group for trace in batch.traces if trace.samples}
        for group in batch.groups:
            if not group.used:
                group.used = True
                self.last.outcomes.append(GroupOutcome(group, "trained" if group in trained else "no_signal"))

    def _skip(self, batch: CollectedBatch) -> None:
        self.buffer.unship()
        self._conclude(batch)
        self.metrics.counts["batches/skipped"] += 1
        logger.warning(
            "step %d: skipping a full batch, because none of its traces carries signal", batch.step
        )

    def drop_stale(self, step: int) -> list[Group]:
        """Drop the traces that are too old for the batch of `step`. Returns the groups that lost all their traces."""
        dropped, lost = self.buffer.drop_stale(step)
        self.metrics.counts["traces/stale"] += dropped
        self.last.outcomes += [GroupOutcome(group, "stale") for group in lost]
        return lost
