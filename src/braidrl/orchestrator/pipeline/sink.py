"""The sink: episodes in, batches out. Groups are assembled by id, scored, judged, flattened, filtered for signal."""

import logging
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

    A trace counts when it is eligible (`ineligibility`) and, with `constant_trainer_batch_size`, carries
    signal; without, traces that carry none count as well and leave a smaller batch. What is left over waits
    for the next batch as long as it is not older than `max_off_policy_steps`. The trace of an algorithm that waits
    for the batch counts before its signal is known, and leaves a smaller batch where it has none.
    """

    def __init__(self, config: OrchestratorConfig) -> None:
        self.config = config
        self.max_off_policy_steps = config.max_off_policy_steps
        self.buffer = Buffer(config, config.max_steps)
        self.last = EndedGroups()
        """What has ended since the last batch."""
        self.unobserved: list[Group] = []
        """Complete groups that their curricula have not seen yet."""
        self.metrics = StepMetrics()
        self.signal = EmptyBatchGuard(self.buffer.size, config.max_empty_batches)

    def take_metrics(self) -> dict[str, float]:
        """The metrics since the last call."""
        metrics, self.metrics = self.metrics, StepMetrics()
        return metrics.summary()

    def take_ended(self) -> EndedGroups:
        """What has ended since the last call."""
        ended, self.last = self.last, EndedGroups()
        return ended

    # -- episodes in

    async def arrive(self, group: Group, number: int, finished: FinishedEpisode) -> None:
        """Take an ended episode and let its algorithm score it. Scoring that fails fails the episode."""
        episode = finished.episode
        await score_episode(group.env.algorithm, finished)
        group.finished[number] = finished
        self.metrics.episode(group.env.name, finished, eligible(finished))
        reasons = (ineligibility(episode, trace) for trace in episode.traces if trace.agent.trainable)
        self.metrics.refused(reason for reason in reasons if reason)
        if finished.error is not None:
            self.signal.failed(finished.error)

    async def complete(self, group: Group) -> None:
        """Score a group whose last episode has ended, and buffer what trains, if every gate of its curriculum admits
        it. Of a group with too few survivors only signal counts that needs no siblings: observations, say.

        Raises `NoSignalError` when no group has had any signal for too long.
        """
        counts = [len(eligible(finished)) for finished in group.finished.values()]
        survivors = sum(count > 0 for count in counts)
        enough = survivors >= group.env.needed
        waits = group.waits_for_batch and enough
        group.env.yields.observe(survivors, sum(counts))
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
        self.discard(group, outcome)
        if not (signal and waits):
            expected = self.buffer.expected(group)
            self.signal.group(expected, group.size, "signal" if signal else outcome, rejecting)
        if self.config.constant_trainer_batch_size or not enough:
            traces = [trace.recounted() for trace in traces if trace.samples]
        self._buffer(group, traces, outcome)

    def discard(self, group: Group, outcome: str) -> None:
        """Note what became of a group."""
        self.last.groups.append((group, outcome))
        self.metrics.group(outcome)

    def _buffer(self, group: Group, traces: list[ReadyTrace], outcome: str) -> None:
        self.buffer.add(group, traces)
        if not traces:
            self.last.fates.append(GroupOutcome(group, outcome))
        self.unobserved.append(group)
        if self.max_off_policy_steps > 0:
            self._settle()

    def _settle(self) -> None:
        """Learn from the groups that are complete: let curricula see them, in dispatch order, and the estimates of what
        episodes bring follow. A strictly on-policy run waits with it until everything has ended, so that timing has no
        say in what is dispatched next."""
        for group in sorted(self.unobserved, key=lambda group: group.place):
            group.env.curriculum.observe(group.episodes)
            group.env.yields.settle()
        self.unobserved.clear()
        self.buffer.settle()

    def _flatten(self, group: Group) -> list[ReadyTrace]:
        """The group's eligible traces as training samples."""
        ready: list[ReadyTrace] = []
        for _, finished in sorted(group.finished.items()):
            for trace in eligible(finished):
                versions = finished.versions(trace.id) if group.env.live else []
                cut = partial(
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
                flat = cut()
                self.metrics.flattened(flat)
                if flat.samples:
                    span = (min(versions, default=None), max(versions, default=None))
                    ready.append(ReadyTrace(group, finished.episode, cut, flat.samples, *span).recounted())
        group.env.yields.measure(trace.tokens for trace in ready)
        return ready

    def _drop_zero_signal(self, traces: list[ReadyTrace]) -> None:
        """Take the tokens that carry no signal out of the samples, and the samples that have no others."""
        for trace in traces:
            kept = (drop_zero_signal(sample) for sample in trace.samples)
            trace.samples = [sample for sample in kept if sample is not None]
            self.metrics.counts["traces/no_signal"] += not trace.samples

    # -- batches out

    def take(self, step: int) -> CollectedBatch | None:
        """The batch of `step` when it is full; one without any signal is skipped, and collecting goes on. A strictly
        on-policy run must ask only when everything has ended."""
        if self.max_off_policy_steps == 0:
            self._settle()
        while (batch := self.buffer.take(step)) is not None:
            if any(trace.samples for trace in batch.traces):
                return batch
            self._skip(batch)
        return None

    def take_all(self, step: int) -> CollectedBatch:
        """What there is, as the batch of `step`, for whoever sets its size: it has ended, all of it."""
        self._settle()
        return self.buffer.take_all(step)

    async def credit(self, batch: CollectedBatch) -> bool:
        """Let the algorithms that wait for a whole batch score their part of it, and drop what then carries no
        signal; False if nothing is left, and the batch is skipped.

        Raises `NoSignalError` when no batch has had any signal for too long.
        """
        waiting = waiting_for_batch(batch.traces)
        for env, traces in waiting.items():
            await score_batch(env.algorithm, traces, batch.step)
            for trace in traces:
                flat = trace.cut()
                del flat.refused["too_long"]  # was counted when the group was complete
                self.metrics.refused(flat.refused.elements())
                trace.samples = flat.samples
            self._drop_zero_signal(traces)
        signal = any(trace.samples for trace in batch.traces)
        if waiting:
            outcome = "signal" if signal else "no_signal"
            self.signal.group(self.buffer.size, len(batch.traces), outcome)
        if signal:
            self._conclude(batch)
        else:
            self._skip(batch)
        return signal

    def _conclude(self, batch: CollectedBatch) -> None:
        """Note that the groups of a batch are done with; those of an earlier one were already."""
        trained = {trace.group for trace in batch.traces if trace.samples}
        for group in batch.groups:
            if not group.used:
                group.used = True
                self.last.fates.append(GroupOutcome(group, "trained" if group in trained else "no_signal"))

    def _skip(self, batch: CollectedBatch) -> None:
        self.buffer.unship()
        self._conclude(batch)
        self.metrics.counts["batches/skipped"] += 1
        logger.warning("step %d: no trace of a whole batch carries signal; it is skipped", batch.step)

    def drop_stale(self, step: int) -> list[Group]:
        """Drop what is too old for the batch of `step`; returns the groups of which nothing will train."""
        dropped, lost = self.buffer.drop_stale(step)
        self.metrics.counts["traces/stale"] += dropped
        self.last.fates += [GroupOutcome(group, "stale") for group in lost]
        return lost
