"""Which replica takes a call, and who waits for one."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from braidrl.orchestrator.engines.replica import Replica


class Caller(Protocol):
    """A session as admission uses it: calls that share a growing prefix."""

    replica: Replica | None
    """Replica that caches its prefix; None: none yet."""

    def move(self, replica: Replica | None) -> None:
        """Set `replica`."""


@dataclass(eq=False)
class _Waiter:
    session: Caller | None
    avoid: Collection[Replica]
    granted: asyncio.Future[Replica] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Admission:
    """Gives calls to the replicas of one model, to each at most `bound` at once (None: as many as come).

    The calls of a session go to the same replica, where its prefix is cached, through weight updates, until that one
    is down. Other calls go to the replica with least to do. What no replica takes now waits: a place that becomes free
    goes to the first in the order of arrival that may have it.
    """

    def __init__(self, replicas: Sequence[Replica], bound: int | None) -> None:
        self.replicas = replicas
        self.bound = bound
        self._peak = 0
        self._waiting: dict[_Waiter, None] = {}

    def __len__(self) -> int:
        """Calls that wait."""
        return len(self._waiting)

    @property
    def queued(self) -> int:
        """Calls that wait although a replica takes requests: for room, not for its weights or its return."""
        return len(self) if any(replica.state == "open" for replica in self.replicas) else 0

    def take_peak(self) -> int:
        """Most calls that waited at once, since the last call of this method."""
        peak, self._peak = self._peak, len(self)
        return peak

    async def acquire(
        self, session: Caller | None, timeout: float, avoid: Collection[Replica] = ()
    ) -> Replica:
        """A place at a replica, to be given back with `release`; one that is not in `avoid` where any is open.

        Raises `TimeoutError` with what it waited for.
        """
        replica = self._choose(session, avoid)
        if replica is not None:
            return self._take(replica, session)
        waiter = _Waiter(session, avoid)
        self._waiting[waiter] = None
        self._peak = max(self._peak, len(self))
        try:
            async with asyncio.timeout(max(0.0, timeout)):
                return await waiter.granted
        except BaseException as error:
            self._waiting.pop(waiter, None)
            if waiter.granted.done() and not waiter.granted.cancelled():
                self.release(waiter.granted.result())  # the place came at the moment of giving up
            if isinstance(error, TimeoutError):
                raise TimeoutError(
                    f"no inference server for {timeout:.0f} s: {self._obstacle(session)}"
                ) from None
            raise

    def release(self, replica: Replica) -> None:
        """Give a place back; the next in line has it."""
        replica.load -= 1
        self._admit(most=1)

    def changed(self) -> None:
        """Replicas have changed what they take."""
        self._admit(most=len(self))

    def untried(self, tried: Collection[Replica]) -> bool:
        """Whether any replica takes requests that is not in `tried`."""
        return any(replica.state == "open" and replica not in tried for replica in self.replicas)

    def _admit(self, most: int) -> None:
        if not self._waiting:
            return
        for waiter in list(self._waiting):
            if waiter.granted.done():
                continue  # its task has given up and not yet said so
            replica = self._choose(waiter.session, waiter.avoid)
            if replica is None:
                continue
            del self._waiting[waiter]
            waiter.granted.set_result(self._take(replica, waiter.session))
            most -= 1
            if most <= 0:
                return

    def _choose(self, session: Caller | None, avoid: Collection[Replica]) -> Replica | None:
        home = self._home(session)
        if home is not None and home not in avoid:
            return home if self._takes(home) else None
        usable = [replica for replica in self.replicas if replica.state == "open"]
        if avoid:
            usable = [replica for replica in usable if replica not in avoid] or usable
        free = [replica for replica in usable if self._takes(replica)]
        return min(free, key=lambda replica: replica.load + replica.sessions, default=None)

    def _home(self, session: Caller | None) -> Replica | None:
        """Where a session's prefix is cached, if it still is."""
        home = None if session is None else session.replica
        return home if home is not None and home.state != "down" and home in self.replicas else None

    def _takes(self, replica: Replica) -> bool:
        return replica.state == "open" and (self.bound is None or replica.load < self.bound)

    def _take(self, replica: Replica, session: Caller | None) -> Replica:
        replica.load += 1
        if session is not None and self._home(session) is None:
            session.move(replica)
        return replica

    def _obstacle(self, session: Caller | None) -> str:
        home = self._home(session)
        replica = home or min(self.replicas, key=lambda replica: replica.state != "open")
        if replica.state == "open":
            return (
                f"{replica.url} works on {replica.load} calls (orchestrator.gateway.max_inflight_per_replica)"
            )
        return f"{replica.url} is {replica.state} ({replica.reason})"
