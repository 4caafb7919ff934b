"""The policy watcher: loads each published version into every replica, then advances the policy version."""

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
"""Interval between two checks of the weights folder, in seconds."""
START_SECONDS = 600.0
"""Maximum wait for the trainer to publish the version that a resumed run starts from, in seconds."""


async def _ignore(version: int) -> None:
    """Do nothing: the default of `on_version`."""


class PolicyWatcher:
    """Applies published versions in increasing order, one update at a time.

    `version` is the newest version that every live replica has acknowledged. If several versions have been published
    since the last update, all but the newest are skipped, except versions for which `must_stop` returns True.

    Args:
        update_timeout: deadline of one update of one replica, in seconds.
        restart_timeout: maximum wait for a replica that restarts, in seconds.
        on_version: awaited for the first version and after each advance. The next update waits for it, so an
            evaluation samples all its tokens from one version.
        must_stop: returns True for a version that must not be skipped.
        publishes_start: True if the trainer publishes v0 as well, so v0 is not the model that the replicas loaded.
    """

    def __init__(
        self,
        run: RunFolder,
        replicas: Replicas,
        *,
        update_timeout: float,
        restart_timeout: float,
        on_version: Callable[[int], Awaitable[None]] = _ignore,
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
        """Duration of the last update, in seconds."""
        self._applied: int | None = None
        self._asleep = False
        self._visited = -1
        self._lock = asyncio.Lock()
        self._advanced = asyncio.Condition()

    async def start(self, version: int) -> None:
        """Load the version that the run starts from into every replica, unless they were started with it."""
        if version > 0 or self.publishes_start:
            await self._published(version)
            await self._apply(version)
        self.version = version

    async def _published(self, version: int) -> None:
        """Wait until `version` is published. On a resume, the trainer may export it from its checkpoint first."""
        backoff = Backoff(START_SECONDS)
        while version not in self.run_folder.published("weights"):
            if not await backoff.sleep():
                raise TimeoutError(
                    f"the trainer did not publish {self.run_folder.weights(version)}, from which the run starts, "
                    f"within {START_SECONDS:g} s; check the trainer's log"
                )

    async def run(self) -> None:
        """Apply new versions and restore restarted replicas until cancelled. Raises if a replica cannot be updated."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            for replica in self.replicas.all:
                group.create_task(self._restore_after_restarts(replica))

    async def wait_for(self, version: int, timeout: float) -> None:
        """Return as soon as every replica serves `version` or a later one.

        Raises `TimeoutError` after `timeout` seconds, not counting the time in `on_version`, which has its own
        deadlines.
        """
        try:
            async with asyncio.timeout(timeout), self._advanced:
                await self._advanced.wait_for(lambda: self.version >= version)
        except TimeoutError:
            if self._visited < self.version:  # `on_version` is running: wait for it, then restart the timeout
                await self.wait_visited(self.version)
                return await self.wait_for(version, timeout)
            published = max(self.run_folder.published("weights"), default=0)
            raise TimeoutError(
                f"waited {timeout:g} s for policy v{version}, but the replicas serve v{self.version} and the "
                f"newest published weights are v{published}; check the trainer's log, or raise "
                "orchestrator.policy_timeout"
            ) from None

    async def wait_visited(self, version: int) -> None:
        """Return when `on_version` has finished for `version`. Its own deadlines bound the wait."""
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
                "%d replica(s) serve policy v%d after %.2f s",
                sum(replica.state == "open" for replica in self.replicas.all),
                version,
                self.update_seconds,
            )
            async with self._advanced:
                self.version = version
                self._advanced.notify_all()
            await self._visit(version)

    def _next(self) -> int | None:
        """Return the next version to apply: the first that must not be skipped, else the newest. None if up to date."""
        newer = [version for version in self.run_folder.published("weights") if version > self.version]
        return next((version for version in newer if self.must_stop(version)), newer[-1] if newer else None)

    async def sleep(self) -> None:
        """Make every replica free its device, after `on_version` has finished for the current version.

        The next update wakes them up. Raises `ReplicaError` if a replica cannot sleep.
        """
        await self.wait_visited(self.version)
        async with self._lock:
            self._asleep = True
            await asyncio.gather(*(self.replicas.sleep(each, self.update_timeout) for each in self._targets))

    async def _apply(self, version: int) -> None:
        """Load a version into every live replica. A replica that is down receives it after its restart."""
        path = self.run_folder.weights(version)
        async with self._lock:
            await asyncio.gather(
                *(self.replicas.update(each, path, version, self.update_timeout) for each in self._targets)
            )
            self._applied, self._asleep = version, False

    @property
    def _targets(self) -> list[Replica]:
        """Replicas that are not down, or all replicas if all are down, so that an update waits for a restart."""
        return [each for each in self.replicas.all if each.state != "down"] or self.replicas.all

    async def _visit(self, version: int) -> None:
        await asyncio.gather(asyncio.to_thread(self._forget), self.on_version(version))
        async with self._advanced:
            self._visited = version
            self._advanced.notify_all()

    def _forget(self) -> None:
        """Remove older weights, except those of versions with a checkpoint."""
        forget_weights_before(self.run_folder, self.version, keep=self.run_folder.published("checkpoints"))

    async def _restore_after_restarts(self, replica: Replica) -> None:
        """Load the current weights into a replica each time it comes back, before it accepts requests."""
        while True:
            while replica.state != "down":
                await self.replicas.changed()
            await self.replicas.wait_healthy(replica, self.restart_timeout)
            async with self._lock:
                if replica.state == "down":  # an update that held the lock may have restored it
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
