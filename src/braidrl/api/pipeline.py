"""Sampling and scoring on request, for the Python API."""

import asyncio
import time
from collections.abc import Sequence

from verifiers.v1.episode import GroupInfo

from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.orchestrator.orchestrator import Orchestrator, first_cause, open_orchestrator
from braidrl.orchestrator.pipeline.buffer import CollectedBatch
from braidrl.orchestrator.pipeline.groups import Group


class Pipeline:
    """The parts of the orchestrator without the loop of its dispatcher.

    `live` must run for as long as the pipeline is used. The other methods are called on the same event loop meanwhile.
    """

    orchestrator: Orchestrator

    def __init__(self, config: OrchestratorConfig) -> None:
        self.config = config
        self.batches = 0
        """Number of scored batches."""
        self._open = asyncio.Event()
        self._closing = asyncio.Event()
        self._started = time.perf_counter()
        """Start of the batch that is being collected, by `time.perf_counter`."""
        self._scored: set[tuple[int, int]] = set()
        """Sort keys of the scored groups."""

    async def live(self) -> None:
        """Connect, load published versions until `close`, and disconnect. Raises the first error of its tasks."""
        async with open_orchestrator(self.config, 0) as self.orchestrator:
            await self.orchestrator.start(0)
            try:
                async with asyncio.TaskGroup() as group:
                    following = group.create_task(self.orchestrator.policy.run())
                    self._open.set()
                    await self._closing.wait()
                    following.cancel()
            except BaseExceptionGroup as error:
                raise first_cause(error) from None

    async def opened(self) -> None:
        """Wait until episodes can run. The deadlines of `live` bound the wait."""
        await self._open.wait()

    async def close(self) -> None:
        """Make `live` return."""
        self._closing.set()

    async def sample(self) -> list[Group]:
        """Run the episodes of one batch with the current policy, at most `max_concurrent` at once.

        Returns complete groups. A failed episode contains its error. The `timeout` of each source bounds its episodes.
        """
        self._started = time.perf_counter()
        sink, backlog = self.orchestrator.sink, self.orchestrator.dispatcher.backlog
        groups: list[Group] = []
        while not sink.fills_batch(groups):
            groups.append(backlog.next_group())
            sink.count_dispatched()
        slots = asyncio.Semaphore(self.config.max_concurrent)
        async with asyncio.TaskGroup() as tasks:
            for group in groups:
                for number in group.numbers:
                    tasks.create_task(self._run_episode(group, number, slots))
        return groups

    async def _run_episode(self, group: Group, number: int, slots: asyncio.Semaphore) -> None:
        async with slots:
            group.versions[number] = self.orchestrator.policy.version
            finished = await group.env.run(group.task, group.key(number))
        finished.episode.group = GroupInfo(id=group.id)
        group.finished[number] = finished

    async def score(self, groups: Sequence[Group]) -> CollectedBatch:
        """Run algorithms and curricula on complete groups, and return the traces with signal as a batch.

        Raises:
            ValueError: a group was scored before.
            RuntimeError: an algorithm raised.
            NoSignalError: too many consecutive groups had no signal.
        """
        sink, step = self.orchestrator.sink, self.batches + 1
        for group in groups:
            if group.sort_key in self._scored:
                raise ValueError(f"group {group.id} was scored already; sample new ones")
            self._scored.add(group.sort_key)
            for number, finished in sorted(group.finished.items()):
                await sink.arrive(group, number, finished)
            await sink.complete(group)
        batch = sink.take_all(step)
        await sink.credit(batch)
        self.batches = step
        sink.resume_at(step)  # counts a batch without signal too, which `credit` has uncounted
        if batch.traces:
            self.orchestrator.report(
                batch, {"seconds/step": time.perf_counter() - self._started, "seconds/policy_wait": 0.0}
            )
        await self.orchestrator.record(step, sink.take_ended())
        return batch

    async def follow(self, version: int) -> None:
        """Wait until every replica serves `version` and an evaluation of it, if due, has finished."""
        await self.orchestrator.policy.wait_for(version, self.config.policy_timeout)
        await self.orchestrator.policy.wait_visited(version)
