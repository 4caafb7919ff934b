"""The dispatcher: keeps episodes in flight and returns a batch as soon as it is full."""

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
from braidrl.orchestrator.pipeline.sink import Sink


class Dispatcher:
    """Keeps episodes in flight, within the staleness bound (`Buffer`) and the concurrency limit.

    Groups are dispatched whole, so the last one may exceed the staleness bound by less than its size. In a strictly
    on-policy run, no group of the next batch is dispatched before the current batch has been shipped and trained. The
    set of dispatched groups then does not depend on timing.

    Work that becomes too old is cancelled or dropped, and its task is queued again ahead of all other work. After
    `max_returns` times, the next batch waits for it instead, so that slow tasks train too.

    Args:
        version: returns the policy version that inference serves.
        max_concurrent: initial maximum number of episodes in flight.
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
        """Groups with an episode that is waiting, in flight or being scored, by `Group.sort_key`."""
        self.progress = time.monotonic()
        """Time of the last progress, by `time.monotonic`."""
        self._waiting: deque[tuple[Group, int]] = deque()
        self._tasks: dict[asyncio.Task, tuple[Group, int, float]] = {}
        self._wake = asyncio.Event()
        self._ended_one = asyncio.Event()
        self._failure: BaseException | None = None
        self._collecting: int | None = None

    # -- the loop

    async def run(self) -> None:
        """Dispatch until cancelled, then cancel all episodes. Re-raises the error of a failed algorithm."""
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
        """Check again for work: after a new policy version, a shipped batch or an ended episode."""
        self.progress = time.monotonic()
        self._wake.set()

    def set_max_concurrent(self, episodes: int) -> None:
        """Set the maximum number of concurrent episodes. Running episodes are not interrupted."""
        if episodes != self.max_concurrent:
            self.max_concurrent = episodes
            self._wake.set()  # not `wake`: a new limit is not progress

    @property
    def idle(self) -> bool:
        """True if no group is in flight."""
        return not self.groups

    @property
    def full(self) -> bool:
        """True if the staleness bound allows no further group."""
        return self.buffer.full(self.groups.values(), self.version())

    def _fill(self) -> None:
        while len(self._tasks) < self.max_concurrent:
            if not self._waiting:
                if self.full:
                    return
                self._open(self.backlog.next_group())
            self._launch(*self._waiting.popleft())

    def _open(self, group: Group) -> None:
        self.groups[group.sort_key] = group
        self._waiting.extend((group, number) for number in group.numbers)
        self.sink.count_dispatched()

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
            del self.groups[group.sort_key]

    def _ended(self, task: asyncio.Task) -> None:
        group, number, _ = self._tasks.pop(task)
        group.running.pop(number, None)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
        self._ended_one.set()
        self.wake()

    # -- batches

    async def collect(self, step: int) -> CollectedBatch:
        """Return the batch of `step` as soon as it is full. The deadlines of its episodes bound the wait.

        A strictly on-policy batch also waits for the last episode in flight, so that its content does not depend on
        timing.
        """
        self._collecting = step
        while True:
            self._ended_one.clear()  # first, because an episode may end while `credit` is awaited
            self._return(self.sink.drop_stale(step))
            if self._may_take(step):
                while (batch := self.sink.take(step)) is not None:
                    if await self.sink.credit(batch):
                        self._shipped(step)
                        return batch
                self.wake()
            await self._ended_one.wait()

    def _may_take(self, step: int) -> bool:
        if self.buffer.on_policy:
            return self.idle and self.full
        return not self._awaited(step)

    def _awaited(self, step: int) -> list[Group]:
        """Return the groups in flight that the batch of `step` waits for, because they may not be returned again."""
        return [group for group in self._too_old(step + 1) if self.buffer.protects(group)]

    def _too_old(self, step: int) -> list[Group]:
        """Return the groups in flight that are too old for the batch of `step`."""
        live = [group for group in self.groups.values() if group.env.live]
        return [group for group in live if self.buffer.too_old(group, step)]

    def _shipped(self, step: int) -> None:
        self._collecting = None
        for env in self.envs:
            env.yield_estimate.fade()
        self._return(self.sink.drop_stale(step + 1))
        self._return(self._cancel(self._too_old(step + 1)))
        self.wake()

    def _cancel(self, groups: list[Group]) -> list[Group]:
        """Stop the episodes of these groups, and return the groups."""
        for group in groups:
            del self.groups[group.sort_key]
            self._waiting = deque(item for item in self._waiting if item[0] is not group)
            for task in group.running.values():
                task.cancel()
        self.sink.cancel(groups)
        return groups

    def _return(self, groups: list[Group]) -> None:
        """Queue the tasks of groups that became too old again."""
        self.backlog.put_back(groups)
        self.sink.return_groups(groups)

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the backlog. A resumed run first repeats groups in flight or buffered, oldest first."""
        buffered = {group.sort_key: group for group in self.buffer.pending_groups()}
        pending = sorted((self.groups | buffered).items())
        return self.backlog.state_dict(group for _, group in pending)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`."""
        self.backlog.load_state_dict(state)

    # -- status

    @property
    def episodes(self) -> int:
        """Number of episodes in flight."""
        return len(self._tasks)

    @property
    def in_flight(self) -> Counter[str]:
        """Number of episodes in flight by source."""
        return Counter(group.env.name for group, _, _ in self._tasks.values())

    def describe(self) -> str:
        """Return a status line: episodes in flight, buffered traces, and the reason for waiting."""
        flight = ", ".join(f"{count} of {name}" for name, count in sorted(self.in_flight.items())) or "none"
        oldest = min(self._tasks.values(), key=lambda entry: entry[2], default=None)
        if oldest is not None:
            group, number, started = oldest
            flight += f" (oldest {group.key(number)}, {time.monotonic() - started:.0f} s)"
        return f"episodes in flight: {flight}; {self.buffer.describe(self.version())}; {self._state()}"

    def _state(self) -> str:
        if self._collecting is not None and (awaited := self._awaited(self._collecting)):
            names = ", ".join(sorted(group.id for group in awaited))
            return (
                f"the batch of step {self._collecting} waits for {names}, returned max_returns times already"
            )
        more = self._waiting or not self.full
        if more and len(self._tasks) >= self.max_concurrent:
            return f"no more than {self.max_concurrent} episodes at once"
        if more:
            return "dispatching"
        return "waits for the trainer's next version" if self.idle else "waits for episodes to end"
