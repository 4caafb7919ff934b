"""The sink: episodes in, batches out. Groups are assembled by id, scored, flattened, filtered for signal."""

import logging
from dataclasses import dataclass
from functools import partial

from verifiers.v1 import Episode
from verifiers.v1.trace import Error, Trace

from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.orchestrator.envs import Finished, TrainEnv
from braidrl.orchestrator.groups import Group, ReadyTrace
from braidrl.orchestrator.metrics import StepMetrics
from braidrl.orchestrator.signal_watch import SignalWatch
from braidrl.orchestrator.train.algo import Algorithm
from braidrl.orchestrator.train.algo.routing import ineligibility
from braidrl.orchestrator.train.samples import drop_zero_signal, flatten_trace
from braidrl.transport.types import TrainingBatch

logger = logging.getLogger(__name__)


@dataclass
class Batch:
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
    def versions(self) -> str:
        """Which policies sampled it, in words."""
        oldest = [trace.oldest for trace in self.traces if trace.oldest is not None]
        newest = [trace.newest for trace in self.traces if trace.newest is not None]
        if not oldest or not newest:
            return "a frozen model"
        return f"v{min(oldest)}" if min(oldest) == max(newest) else f"v{min(oldest)}-v{max(newest)}"


class Sink:
    """Collects batches of `batch_size` training traces in dispatch order.

    A trace counts when it is eligible (`ineligibility`) and, with `constant_trainer_batch_size`, carries
    signal; without, traces that carry none count as well and leave a smaller batch. What is left over waits
    for the next batch as long as it is not older than `max_off_policy_steps`. The trace of an algorithm that waits
    for the batch counts before its signal is known, and leaves a smaller batch where it has none.
    """

    def __init__(self, config: OrchestratorConfig) -> None:
        self.config = config
        self.max_staleness = config.max_off_policy_steps
        self.shipped = 0
        """Batches of the run that were shipped, by earlier processes too."""
        self.ready: list[ReadyTrace] = []
        self.ended: list[tuple[Group, str]] = []
        """Groups that ended since the last batch, and what became of each: the step's records."""
        self.unobserved: list[Group] = []
        """Complete groups that their curricula have not seen yet."""
        self.metrics = StepMetrics()
        self.signal = SignalWatch(config.batch_size, config.max_empty_batches)

    def take_metrics(self) -> dict[str, float]:
        """The metrics since the last call."""
        metrics, self.metrics = self.metrics, StepMetrics()
        return metrics.summary()

    # -- how much may run ahead

    @property
    def buffered(self) -> int:
        """Traces that wait for a batch."""
        return len(self.ready)

    def room(self, version: int) -> int:
        """Training traces that may be buffered or in flight while the policy is `version`."""
        last = min(version + 1 + self.max_staleness, self.config.max_steps)
        return (last - self.shipped) * self.config.batch_size

    # -- episodes in

    async def arrive(self, group: Group, number: int, finished: Finished) -> None:
        """Take an ended episode and let its algorithm score it. Scoring that fails fails the episode."""
        episode = finished.episode
        if _eligible(finished):
            try:
                await group.env.algorithm.finalize_episode(episode)
            except Exception as error:
                logger.warning("scoring episode %s failed", finished.key, exc_info=True)
                episode.ok = False
                episode.errors.append(Error(type=type(error).__name__, message=f"scoring: {error}"))
        group.finished[number] = finished
        self.metrics.episode(group.env.name, finished, _eligible(finished))
        reasons = (ineligibility(episode, trace) for trace in episode.traces if trace.agent.trainable)
        self.metrics.refused(reason for reason in reasons if reason)
        if finished.error is not None:
            self.signal.failed(finished.error)

    async def complete(self, group: Group) -> None:
        """Score a group whose last episode has ended, and buffer what trains, if every gate of its curriculum admits
        it. Of a group with too few survivors only signal counts that needs no siblings: observations, say.

        Raises `NoSignalError` when no group has had any signal for too long.
        """
        eligible = [len(_eligible(finished)) for finished in group.finished.values()]
        survivors = sum(count > 0 for count in eligible)
        enough = survivors >= group.env.needed
        waits = group.waits_for_batch and enough
        group.env.yields.observe(survivors, sum(eligible))
        traces: list[ReadyTrace] = []
        rejecting: list[str] = []
        if survivors:
            await self._score(group.env.algorithm, "score_group", group.episodes, f"group {group.id}")
            rejecting = group.env.curriculum.rejecting(group.episodes)
            traces = [] if rejecting else self._flatten(group)
        if not waits:
            self._drop_zero_signal(traces)
        self.unobserved.append(group)
        if self.max_staleness > 0:
            self._observe()
        signal = any(trace.samples for trace in traces)
        outcome = (
            "too_few" if not enough else "rejected" if rejecting else "signal" if signal else "no_signal"
        )
        self.discard(group, outcome)
        if not (signal and waits):
            self.signal.group(group.size, "signal" if signal else outcome, rejecting)
        if self.config.constant_trainer_batch_size or not enough:
            traces = [trace for trace in traces if trace.samples]
        self.ready += traces

    def discard(self, group: Group, outcome: str) -> None:
        """Note what became of a group."""
        self.ended.append((group, outcome))
        self.metrics.group(outcome)

    def _observe(self) -> None:
        """Let the curricula see the complete groups, in dispatch order. A strictly on-policy run waits with it until a
        batch is full, so that timing has no say in what they choose next."""
        for group in sorted(self.unobserved, key=lambda group: group.place):
            group.env.curriculum.observe(group.episodes)
        self.unobserved.clear()

    async def _score(self, algorithm: Algorithm, hook: str, episodes: list[Episode], what: str) -> None:
        try:
            await getattr(algorithm, hook)(episodes)
        except Exception as error:
            raise RuntimeError(
                f"{type(algorithm).__name__}.{hook} failed on {what}: {type(error).__name__}: {error}; the run stops, "
                "because without credit it would train nothing and nobody would notice"
            ) from error

    def _flatten(self, group: Group) -> list[ReadyTrace]:
        """The group's eligible traces as training samples."""
        ready: list[ReadyTrace] = []
        for _, finished in sorted(group.finished.items()):
            for trace in _eligible(finished):
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
                self.metrics.refused(flat.refused.elements())
                if flat.samples:
                    span = (min(versions, default=None), max(versions, default=None))
                    ready.append(ReadyTrace(group, finished.episode, cut, flat.samples, *span))
        return ready

    def _drop_zero_signal(self, traces: list[ReadyTrace]) -> None:
        """Take the tokens that carry no signal out of the samples, and the samples that have no others."""
        for trace in traces:
            kept = (drop_zero_signal(sample) for sample in trace.samples)
            trace.samples = [sample for sample in kept if sample is not None]
            self.metrics.counts["traces/no_signal"] += not trace.samples

    # -- batches out

    def take(self, step: int) -> Batch | None:
        """The batch of `step` when it is full; one without any signal is skipped, and collecting goes on."""
        size = self.config.batch_size
        while len(self.ready) >= size:
            self._observe()
            self.ready.sort(key=lambda trace: trace.group.place)
            batch, self.ready = Batch(step, self.ready[:size]), self.ready[size:]
            for trace in batch.traces:
                trace.group.used = True
            if any(trace.samples for trace in batch.traces):
                self.shipped += 1
                return batch
            self._skip(batch)
        return None

    async def credit(self, batch: Batch) -> bool:
        """Let the algorithms that wait for a whole batch score their part of it, and drop what then carries no
        signal; False if nothing is left, and the batch is skipped.

        Raises `NoSignalError` when no batch has had any signal for too long.
        """
        waiting: dict[TrainEnv, list[ReadyTrace]] = {}
        for trace in batch.traces:
            if trace.group.waits_for_batch:
                waiting.setdefault(trace.group.env, []).append(trace)
        for env, traces in waiting.items():
            await self._score_batch(env.algorithm, traces, batch.step)
            for trace in traces:
                flat = trace.cut()
                del flat.refused["too_long"]  # was counted when the group was complete
                self.metrics.refused(flat.refused.elements())
                trace.samples = flat.samples
            self._drop_zero_signal(traces)
        signal = any(trace.samples for trace in batch.traces)
        if waiting:
            self.signal.group(len(batch.traces), "signal" if signal else "no_signal")
        if not signal:
            self.shipped -= 1
            self._skip(batch)
        return signal

    async def _score_batch(self, algorithm: Algorithm, traces: list[ReadyTrace], step: int) -> None:
        """Score the episodes of these traces, but for those that an earlier batch held a trace of."""
        first = {trace.episode.id: trace for trace in traces if trace.episode.id not in trace.group.credited}
        for episode_id, trace in first.items():
            trace.group.credited.add(episode_id)
        if first:
            episodes = [trace.episode for trace in first.values()]
            await self._score(algorithm, "score_batch", episodes, f"the batch of step {step}")

    def _skip(self, batch: Batch) -> None:
        self.metrics.counts["batches/skipped"] += 1
        logger.warning("step %d: no trace of a whole batch carries signal; it is skipped", batch.step)

    def drop_stale(self, step: int) -> list[Group]:
        """Drop what is too old for the batch of `step`; returns the groups of which nothing will train."""
        stale = [trace for trace in self.ready if trace.staleness(step) > self.max_staleness]
        if not stale:
            return []
        self.ready = [trace for trace in self.ready if trace.staleness(step) <= self.max_staleness]
        self.metrics.counts["traces/stale"] += len(stale)
        left = {trace.group for trace in self.ready}
        groups = {trace.group for trace in stale if not trace.group.used} - left
        return sorted(groups, key=lambda group: group.place)


def _eligible(finished: Finished) -> list[Trace]:
    return [trace for trace in finished.episode.traces if ineligibility(finished.episode, trace) is None]
