"""The policy watcher: takes each published version to every replica, and only then counts it."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from braidrl.orchestrator.engines.pool import Replicas
from braidrl.orchestrator.engines.replica import Replica
from braidrl.transport.weights import forget_weights_before
from braidrl.utils.http import Backoff
from braidrl.utils.run_folder import RunFolder

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""Pause between two looks at the weights folder."""
START_SECONDS = 600.0
"""Longest wait for the trainer to publish the version that a run goes on from."""


async def _nothing(version: int) -> None:
    """What there is to do for a version that nobody watches."""


class PolicyWatcher:
    """Versions in order, one update at a time, never backwards.

    `version` is the newest one that every replica has acknowledged that is not down. A newer version may overtake one
    that nobody applied yet, but not one that `must_stop` at: `on_version` runs for the first version and after each
    advance, and the next update waits for it (an evaluation sees one version from its first to its last token).

    Args:
        update_timeout: deadline of one update of one replica, in seconds.
        restart_timeout: longest wait for a replica that restarts, in seconds.
        publishes_start: whether the trainer publishes v0 as well, so that it is not the model that replicas loaded.
    """

    def __init__(
        self,
        run: RunFolder,
        replicas: Replicas,
        *,
        update_timeout: float,
        restart_timeout: float,
        on_version: Callable[[int], Awaitable[None]] = _nothing,
        must_stop: Callable[[int], bool] = lambda version: False,
        publishes_start: bool = False,
    ) -> None:
        self.run_folder = run
        self.replicas = replicas
        self.update_timeout = update_timeout
        self.restart_timeout = restart_timeout
        self.version = 0
        self.on_version = on_version
        self.must_stop = must_stop
        self.publishes_start = publishes_start
        self.update_seconds = 0.0
        """Duration of the last update."""
        self._applied: int | None = None
        self._asleep = False
        self._visited = -1
        self._lock = asyncio.Lock()
        self._advanced = asyncio.Condition()

    async def start(self, version: int) -> None:
        """Give every replica the version that the run starts from, unless it is the model that they loaded."""
        if version > 0 or self.publishes_start:
            await self._published(version)
            await self._apply(version)
        self.version = version

    async def _published(self, version: int) -> None:
        """Wait for weights that the trainer may have to write again, from its checkpoint."""
        backoff = Backoff(START_SECONDS)
        while version not in self.run_folder.published("weights"):
            if not await backoff.sleep():
                raise TimeoutError(
                    f"waited {START_SECONDS:g} s for the trainer to publish {self.run_folder.weights(version)}, from "
                    "which the run goes on; look at its log"
                )

    async def run(self) -> None:
        """Watch until cancelled. What goes wrong beyond repair is raised here."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            for replica in self.replicas.all:
                group.create_task(self._heal(replica))

    async def wait_for(self, version: int, timeout: float) -> None:
        """Return once every replica serves `version` or a later one; `TimeoutError` at the deadline. Time in
        `on_version`, which has deadlines of its own, does not count."""
        try:
            async with asyncio.timeout(timeout), self._advanced:
                await self._advanced.wait_for(lambda: self.version >= version)
        except TimeoutError:
            if self._visited < self.version:
                await self.wait_visited(self.version)
                return await self.wait_for(version, timeout)
            published = max(self.run_folder.published("weights"), default=0)
            raise TimeoutError(
                f"waited {timeout:g} s for policy v{version}; the replicas serve v{self.version} and the "
                f"newest published weights are v{published}; look at the trainer's log, or raise "
                f"orchestrator.policy_timeout"
            ) from None

    async def wait_visited(self, version: int) -> None:
        """Return once `on_version` is done with `version`; its own deadlines bound the wait."""
        async with self._advanced:
            await self._advanced.wait_for(lambda: self._visited >= version)

    async def _follow(self) -> None:
        await self._visit(self.version)
        while True:
            version = self._next()
            if version is None:
                await asyncio.sleep(POLL_SECONDS)
                continue
            started = time.perf_counter()
            await self._apply(version)
            self.update_seconds = time.perf_counter() - started
            logger.info(
                "policy v%d is served by %d replica(s) after %.2f s",
                version,
                sum(replica.state == "open" for replica in self.replicas.all),
                self.update_seconds,
            )
            async with self._advanced:
                self.version = version
                self._advanced.notify_all()
            await self._visit(version)

    def _next(self) -> int | None:
        """The newest published version, or the first on the way to it that `on_version` must see."""
        newer = [version for version in self.run_folder.published("weights") if version > self.version]
        return next((version for version in newer if self.must_stop(version)), newer[-1] if newer else None)

    async def sleep(self) -> None:
        """Have every replica free its device, once the evaluation of this version is done; the next version wakes them.
        Raises `ReplicaError` when one cannot."""
        await self.wait_visited(self.version)
        async with self._lock:
            self._asleep = True
            await asyncio.gather(*(self.replicas.sleep(each, self.update_timeout) for each in self._there))

    async def _apply(self, version: int) -> None:
        """Give every replica a version; one that is down has it when it is back, unless all are."""
        path = self.run_folder.weights(version)
        async with self._lock:
            await asyncio.gather(
                *(self.replicas.update(each, path, version, self.update_timeout) for each in self._there)
            )
            self._applied, self._asleep = version, False

    @property
    def _there(self) -> list[Replica]:
        """The replicas that are not down; where all are, all: somebody must be waited for."""
        return [each for each in self.replicas.all if each.state != "down"] or self.replicas.all

    async def _visit(self, version: int) -> None:
        await asyncio.gather(asyncio.to_thread(self._forget), self.on_version(version))
        async with self._advanced:
            self._visited = version
            self._advanced.notify_all()

    def _forget(self) -> None:
        """Remove older weights, except those that a checkpoint resumes from."""
        forget_weights_before(self.run_folder, self.version, keep=self.run_folder.published("checkpoints"))

    async def _heal(self, replica: Replica) -> None:
        """When it has been down, it gets the current version before it takes requests again."""
        while True:
            while replica.state != "down":
                await self.replicas.changed()
            await self.replicas.wait_healthy(replica, self.restart_timeout)
            async with self._lock:
                if replica.state == "down":
                    await self._restore(replica)

    async def _restore(self, replica: Replica) -> None:
        if self._asleep:
            await self.replicas.sleep(replica, self.update_timeout)
            return
        if self._applied is not None:
            path = self.run_folder.weights(self._applied)
            await self.replicas.update(replica, path, self._applied, self.update_timeout)
        else:
            self.replicas.set_state(replica, "open")
        if replica.state == "open":
            logger.info("inference server %s is back with v%d", replica.url, self._applied or 0)
