"""The dispatcher: keeps episodes in flight, and hands out a batch as soon as it is full."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from verifiers.v1.episode import GroupInfo

from braidrl.orchestrator.envs.source import TrainEnv
from braidrl.orchestrator.pipeline.backlog import Backlog
from braidrl.orchestrator.pipeline.buffer import CollectedBatch
from braidrl.orchestrator.pipeline.groups import Group
from braidrl.orchestrator.pipeline.records import GroupOutcome
from braidrl.orchestrator.pipeline.sink import Sink


class Dispatcher:
    """Keeps episodes in flight, within the bound on staleness (`Buffer`) and the bound on concurrency.

    Groups are dispatched whole, so the last one may exceed the bound by less than its size. With k = 0 nothing of
    the next batch is dispatched before the last one is shipped and trained, and then timing has no say in the set
    of dispatched groups.

    Work that gets too old is cancelled or dropped, and its task comes first once more. After `max_returns` times the
    batch that would leave it behind waits for it, so that no task is too slow to be learnt from.

    Args:
        version: the policy version that is served now.
        max_concurrent: most episodes in flight, until `limit` says otherwise.
    """

    def __init__(
        self, envs: list[TrainEnv], sink: Sink, version: Callable[[], int], *, seed: int, max_concurrent: int
    ) -> None:
        self.envs = envs
        self.sink = sink
        self.buffer = sink.buffer
        self.version = version
        self.seed = seed
        self.max_concurrent = max_concurrent
        self.backlog = Backlog(envs, seed)
        self.groups: dict[tuple[int, int], Group] = {}
        """Groups of which an episode is waiting, in flight, or being scored, by their place."""
        self.progress = time.monotonic()
        """When something moved last."""
        self._waiting: deque[tuple[Group, int]] = deque()
        self._tasks: dict[asyncio.Task, tuple[Group, int, float]] = {}
        self._wake = asyncio.Event()
        self._ended_one = asyncio.Event()
        self._failure: BaseException | None = None
        self._collecting: int | None = None

    # -- the loop

    async def run(self) -> None:
        """Dispatch until cancelled; then cancel what is in flight. Raises what a failed algorithm raised."""
        try:
            while True:
                self._wake.clear()
                if self._failure is not None:
                    raise self._failure
                self._fill()
                await self._wake.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def wake(self) -> None:
        """Something changed that may let more episodes run: a new version, a batch, an ended episode."""
        self.progress = time.monotonic()
        self._wake.set()

    def limit(self, episodes: int) -> None:
        """Have no more than so many episodes in flight from now on; those that are go on."""
        if episodes != self.max_concurrent:
            self.max_concurrent = episodes
            self._wake.set()

    @property
    def idle(self) -> bool:
        """Whether no group is under way."""
        return not self.groups

    @property
    def full(self) -> bool:
        """Whether the bound on staleness allows no further group."""
        return self.buffer.full(self.groups.values(), self.version())

    def _fill(self) -> None:
        while len(self._tasks) < self.max_concurrent:
            if not self._waiting:
                if self.full:
                    return
                self._open(self.backlog.next_group())
            self._launch(*self._waiting.popleft())

    def _open(self, group: Group) -> None:
        self.groups[group.place] = group
        self._waiting.extend((group, number) for number in group.numbers)
        self.sink.metrics.counts["groups/dispatched"] += 1

    # -- episodes

    def _launch(self, group: Group, number: int) -> None:
        group.versions[number] = self.version()
        task = asyncio.create_task(self._episode(group, number), name=group.key(number))
        group.running[number] = task
        self._tasks[task] = (group, number, time.monotonic())
        task.add_done_callback(self._ended)

    async def _episode(self, group: Group, number: int) -> None:
        finished = await group.env.run(group.task, group.key(number))
        finished.episode.group = GroupInfo(id=group.id)
        await self.sink.arrive(group, number, finished)
        if group.complete:
            await self.sink.complete(group)
            del self.groups[group.place]

    def _ended(self, task: asyncio.Task) -> None:
        group, number, _ = self._tasks.pop(task)
        group.running.pop(number, None)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
        self._ended_one.set()
        self.wake()

    # -- batches

    async def collect(self, step: int) -> CollectedBatch:
        """The batch of `step`, as soon as it is full. The deadlines of its episodes bound the wait.

        A strictly on-policy batch also waits for the last episode in flight, so that timing has no say in it.
        """
        self._collecting = step
        while True:
            self._ended_one.clear()
            self._return(self.sink.drop_stale(step))
            if self._may_take(step):
                while (batch := self.sink.take(step)) is not None:
                    if await self.sink.credit(batch):
                        self._shipped(step)
                        return batch
                self.wake()
            await self._ended_one.wait()

    def _may_take(self, step: int) -> bool:
        if self.sink.max_off_policy_steps == 0:
            return self.idle and self.full
        return not self._awaited(step)

    def _awaited(self, step: int) -> list[Group]:
        """Groups that the batch of `step` must not leave behind."""
        return [group for group in self._too_old(step + 1) if self.buffer.protects(group)]

    def _too_old(self, step: int) -> list[Group]:
        """Groups in flight that would be too old for the batch of `step`."""
        live = [group for group in self.groups.values() if group.env.live]
        return [group for group in live if group.staleness(step) > self.sink.max_off_policy_steps]

    def _shipped(self, step: int) -> None:
        self._collecting = None
        for env in self.envs:
            env.yields.fade()
        self._return(self.sink.drop_stale(step + 1))
        self._return(self._cancel(self._too_old(step + 1)))
        self.wake()

    def _cancel(self, groups: list[Group]) -> list[Group]:
        """Stop what still runs of these groups."""
        for group in groups:
            del self.groups[group.place]
            self._waiting = deque(item for item in self._waiting if item[0] is not group)
            for task in group.running.values():
                task.cancel()
            self.sink.metrics.counts["episodes/cancelled"] += group.size - len(group.finished)
            self.sink.discard(group, "stale")
            self.sink.last.fates.append(GroupOutcome(group, "stale"))
        return groups

    def _return(self, groups: list[Group]) -> None:
        """Dispatch the tasks of groups that got too old once more."""
        self.backlog.put_back(groups)
        self.sink.metrics.counts["groups/returned"] += len(groups)

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run dispatches next: what was in flight or buffered first, oldest first."""
        buffered = {trace.group.place: trace.group for trace in self.buffer.ready if not trace.group.used}
        pending = sorted((self.groups | buffered).items())
        return self.backlog.state_dict(group for _, group in pending)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.backlog.load_state_dict(state)

    # -- what people see

    @property
    def episodes(self) -> int:
        """Episodes in flight."""
        return len(self._tasks)

    @property
    def in_flight(self) -> Counter[str]:
        """Episodes in flight by source."""
        return Counter(group.env.name for group, _, _ in self._tasks.values())

    def describe(self) -> str:
        """Who waits for what, in one line."""
        flight = ", ".join(f"{count} of {name}" for name, count in sorted(self.in_flight.items())) or "none"
        oldest = min(self._tasks.values(), key=lambda entry: entry[2], default=None)
        if oldest is not None:
            group, number, started = oldest
            flight += f" (oldest {group.key(number)}, {time.monotonic() - started:.0f} s)"
        return f"episodes in flight: {flight}; {self.buffer.describe(self.version())}; {self._state()}"

    def _state(self) -> str:
        if self._collecting is not None and (awaited := self._awaited(self._collecting)):
            names = ", ".join(sorted(group.id for group in awaited))
            return f"the batch of step {self._collecting} waits for {names}, left behind too often already"
        more = self._waiting or not self.full
        if more and len(self._tasks) >= self.max_concurrent:
            return f"no more than {self.max_concurrent} episodes at once"
        if more:
            return "dispatching"
        return "waits for the trainer's next version" if self.idle else "waits for episodes to end"
