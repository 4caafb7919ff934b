"""The data plane by hand: episodes when they are asked for, and their credit."""

import asyncio
import time
from collections.abc import Sequence

from verifiers.v1.episode import GroupInfo

from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.orchestrator.orchestrator import Orchestrator, first_cause, open_orchestrator
from braidrl.orchestrator.pipeline.buffer import CollectedBatch
from braidrl.orchestrator.pipeline.groups import Group


class Pipeline:
    """The rooms of the orchestrator, without its dispatcher's loop.

    `live` runs for as long as it is used; the other methods are called on the same event loop meanwhile.
    """

    orchestrator: Orchestrator

    def __init__(self, config: OrchestratorConfig) -> None:
        self.config = config
        self.batches = 0
        """Batches scored."""
        self._open = asyncio.Event()
        self._closing = asyncio.Event()
        self._started = time.perf_counter()
        """When the batch that is being collected was begun."""
        self._scored: set[tuple[int, int]] = set()

    async def live(self) -> None:
        """Connect, follow the published versions until `close`, and disconnect. Raises what goes wrong meanwhile."""
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
        """Wait until episodes can be played; the deadlines of `live` bound it."""
        await self._open.wait()

    async def close(self) -> None:
        """Let `live` end."""
        self._closing.set()

    async def sample(self) -> list[Group]:
        """Play the episodes of one batch with the policy that is served, as many at once as the config allows.

        The deadlines of episodes (`timeout` of a source) bound it. What goes wrong with one is in it.
        """
        self._started = time.perf_counter()
        buffer, backlog = self.orchestrator.sink.buffer, self.orchestrator.dispatcher.backlog
        groups: list[Group] = []
        while not buffer.full(groups, version=buffer.shipped):  # strictly on-policy: room for one batch
            groups.append(backlog.next_group())
            self.orchestrator.sink.metrics.counts["groups/dispatched"] += 1
        places = asyncio.Semaphore(self.config.max_concurrent)
        async with asyncio.TaskGroup() as tasks:
            for group in groups:
                for number in group.numbers:
                    tasks.create_task(self._play(group, number, places))
        return groups

    async def _play(self, group: Group, number: int, places: asyncio.Semaphore) -> None:
        async with places:
            group.versions[number] = self.orchestrator.policy.version
            finished = await group.env.run(group.task, group.key(number))
        finished.episode.group = GroupInfo(id=group.id)
        group.finished[number] = finished

    async def score(self, groups: Sequence[Group]) -> CollectedBatch:
        """Let algorithms and curricula see complete groups, and cut the traces that carry signal into samples.

        Raises `ValueError` for a group that was scored before, `RuntimeError` where an algorithm raises, and
        `NoSignalError` when nothing has had any signal for too long.
        """
        sink, step = self.orchestrator.sink, self.batches + 1
        for group in groups:
            if group.place in self._scored:
                raise ValueError(f"group {group.id} was scored already; sample new ones")
            self._scored.add(group.place)
            for number, finished in sorted(group.finished.items()):
                await sink.arrive(group, number, finished)
            await sink.complete(group)
        batch = sink.take_all(step)
        await sink.credit(batch)
        self.batches = sink.buffer.shipped = step  # also one that carries no signal
        if batch.traces:
            self.orchestrator.report(
                batch, {"seconds/step": time.perf_counter() - self._started, "seconds/policy_wait": 0.0}
            )
        await self.orchestrator.record(step, sink.take_ended())
        return batch

    async def follow(self, version: int) -> None:
        """Wait until every replica serves `version`, and its evaluation is done if it is due."""
        await self.orchestrator.policy.wait_for(version, self.config.policy_timeout)
        await self.orchestrator.policy.wait_visited(version)
