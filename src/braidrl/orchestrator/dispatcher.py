"""The dispatcher: which task runs next, and how many may run ahead of the trainer."""

import asyncio
import bisect
import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from verifiers.v1.episode import GroupInfo

from braidrl.orchestrator.envs import TrainEnv
from braidrl.orchestrator.groups import Group, Work
from braidrl.orchestrator.sessions import derive_seed
from braidrl.orchestrator.sink import Batch, Sink

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30.0
"""Time without progress after which a line says who waits for what."""


class Dispatcher:
    """Keeps episodes in flight, within the bound on staleness and the bound on concurrency.

    While the policy is v, at most `(v + 1 + k) * batch_size` training traces of the whole run are shipped,
    buffered or in flight, so that what is dispatched now is at most k versions old when it trains. Groups are
    dispatched whole, so the last one may exceed the bound by less than its size.

    Which task comes next depends on the run's seed, the number of the dispatch and the samplers alone. With
    k = 0 nothing of the next batch is dispatched before the last one is shipped and trained, and then timing
    has no say in the set of dispatched groups either.

    Args:
        version: the policy version that is served now.
    """

    def __init__(
        self, envs: list[TrainEnv], sink: Sink, version: Callable[[], int], *, seed: int, max_concurrent: int
    ) -> None:
        self.envs = envs
        self.sink = sink
        self.version = version
        self.seed = seed
        self.max_concurrent = max_concurrent
        self.next_index = 0
        self.queue: deque[Work] = deque()
        """Work to do before another task is chosen."""
        self.groups: dict[tuple[int, int], Group] = {}
        """Groups of which an episode is waiting, in flight, or being scored, by their place."""
        self._waiting: deque[tuple[Group, int]] = deque()
        self._tasks: dict[asyncio.Task, tuple[Group, int, float]] = {}
        self._wake = asyncio.Event()
        self._ended_one = asyncio.Event()
        self._failure: BaseException | None = None
        self._progress = time.monotonic()
        self._weights = list(itertools.accumulate(env.source.weight for env in envs))

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
        self._progress = time.monotonic()
        self._wake.set()

    @property
    def idle(self) -> bool:
        """Whether no group is under way."""
        return not self.groups

    def _fill(self) -> None:
        while len(self._tasks) < self.max_concurrent:
            if not self._waiting and not self._open_group():
                return
            self._launch(*self._waiting.popleft())

    def _open_group(self) -> bool:
        """Open the next group, if the bound on staleness allows one more."""
        expected = sum(group.expected for group in self.groups.values())
        if self.sink.buffered + expected >= self.sink.room(self.version()):
            return False
        if not self.queue:
            self.queue.extend(self._choose_task())
        work = self.queue.popleft()
        index = self._number() if work.index is None else work.index
        group = Group(index, work.env, work.task, work.numbers)
        self.groups[group.place] = group
        self._waiting.extend((group, number) for number in group.numbers)
        return True

    def _number(self) -> int:
        """The number of the next dispatch."""
        self.next_index += 1
        return self.next_index - 1

    def _choose_task(self) -> list[Work]:
        """The groups of the next task."""
        index = self._number()
        env = self._choose_env(index)
        return Work.of_task(index, env, env.curriculum.next_task())

    def _choose_env(self, index: int) -> TrainEnv:
        """A weighted choice that depends on the run's seed and the number of the dispatch alone."""
        point = derive_seed(self.seed, "source", index) / 2**63 * self._weights[-1]
        return self.envs[min(bisect.bisect_right(self._weights, point), len(self.envs) - 1)]

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

    async def collect(self, step: int) -> Batch:
        """The batch of `step`, as soon as it is full. The deadlines of its episodes bound the wait.

        A strictly on-policy batch also waits for the last episode in flight, so that timing has no say in it.
        """
        while True:
            self._ended_one.clear()
            self._return(self.sink.drop_stale(step))
            if self.sink.max_staleness > 0 or self.idle:
                while (batch := self.sink.take(step)) is not None:
                    if await self.sink.credit(batch):
                        self._shipped(step)
                        return batch
                self.wake()
            await self._ended_one.wait()

    def _shipped(self, step: int) -> None:
        for env in self.envs:
            env.yields.settle()
        self._return(self.sink.drop_stale(step + 1))
        self._cancel_stale(step + 1)
        self.wake()

    def _cancel_stale(self, step: int) -> None:
        """Cancel the groups that would be too old for the batch of `step`, and return their tasks."""
        for group in list(self.groups.values()):
            oldest = group.oldest() if group.env.live else None
            if oldest is None or step - 1 - oldest <= self.sink.max_staleness:
                continue
            del self.groups[group.place]
            self._waiting = deque(item for item in self._waiting if item[0] is not group)
            for task in group.running.values():
                task.cancel()
            self.sink.metrics.counts["episodes/cancelled"] += group.size - len(group.finished)
            self.sink.discard(group, "stale")
            self._return([group])

    def _return(self, groups: list[Group]) -> None:
        """Dispatch the tasks of groups that got too old once more, as new groups, before anything else."""
        self.queue.extendleft(replace(group.work, index=None) for group in reversed(groups))
        self.sink.metrics.counts["groups/returned"] += len(groups)

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """The next dispatch number, and the work that a resumed run does first, oldest first."""
        buffered = {trace.group.place: trace.group for trace in self.sink.ready if not trace.group.used}
        pending = sorted((self.groups | buffered).items())
        work = [*(group.work for _, group in pending), *self.queue]
        return {"next_index": self.next_index, "work": [item.record() for item in work]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        by_name = {env.name: env for env in self.envs}
        self.next_index = state["next_index"]
        for item in state["work"]:
            env = by_name[item["env"]]
            task = env.curriculum.task_at(item["task"])
            self.queue.append(Work(item["index"], env, task, item["numbers"]))

    # -- what people see

    @property
    def in_flight(self) -> Counter[str]:
        """Episodes in flight by source."""
        return Counter(group.env.name for group, _, _ in self._tasks.values())

    def describe(self) -> str:
        """Who waits for what, in one line."""
        oldest = max((time.monotonic() - started for _, _, started in self._tasks.values()), default=0.0)
        flight = ", ".join(f"{count} of {name}" for name, count in sorted(self.in_flight.items())) or "none"
        room = self.sink.room(self.version())
        state = (
            "waits for the trainer's next version"
            if self.idle and self.sink.buffered >= room
            else "dispatching"
        )
        return (
            f"episodes in flight: {flight} (oldest {oldest:.0f} s); {self.sink.buffered} traces buffered of "
            f"{room} that policy v{self.version()} allows; {state}"
        )

    async def heartbeat(self, extra: Callable[[], str], seconds: float = HEARTBEAT_SECONDS) -> None:
        """Log who waits for what whenever nothing moved for `seconds`; runs until cancelled."""
        while True:
            idle = time.monotonic() - self._progress
            if idle >= seconds:
                logger.info("no progress for %.0f s; %s; %s", idle, self.describe(), extra())
                idle = 0.0
            await asyncio.sleep(max(0.01, seconds - idle))
