"""Assignment of calls to replicas, and the queue of calls that no replica can accept yet."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from braidrl.orchestrator.engines.replica import Replica


class Caller(Protocol):
    """Interface of a session: a sequence of calls that share a growing prefix."""

    replica: Replica | None
    """Replica that caches the prefix, or None before the first call."""

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
    """Assigns calls to the replicas of one model.

    All calls of a session go to the replica that caches its prefix, also across weight updates, until that replica is
    down. Other calls go to the least loaded replica. A call that no replica can accept waits in a queue: a freed slot
    goes to the earliest waiting call that may use it.

    Args:
        bound: maximum number of concurrent calls per replica, or None for no limit.
    """

    def __init__(self, replicas: Sequence[Replica], bound: int | None) -> None:
        self.replicas = replicas
        self.bound = bound
        self._peak = 0
        self._waiting: dict[_Waiter, None] = {}

    def __len__(self) -> int:
        """Number of waiting calls."""
        return len(self._waiting)

    @property
    def queued(self) -> int:
        """Number of calls that wait for capacity.

        0 if no replica is open: calls then wait for weights or a restart.
        """
        return len(self) if any(replica.state == "open" for replica in self.replicas) else 0

    def take_peak(self) -> int:
        """Return the peak number of waiting calls since the previous `take_peak`, and reset it."""
        peak, self._peak = self._peak, len(self)
        return peak

    async def acquire(
        self, session: Caller | None, timeout: float, avoid: Collection[Replica] = ()
    ) -> Replica:
        """Reserve a slot at a replica. The caller must return it with `release`.

        Args:
            session: session of the call, or None.
            timeout: maximum wait, in seconds.
            avoid: replicas to use only if no other one is open.

        Raises:
            TimeoutError: no slot became free in time. The message names the cause.
        """
        replica = self._choose(session, avoid)
        if replica is not None:
            return self._assign(replica, session)
        waiter = _Waiter(session, avoid)
        self._waiting[waiter] = None
        self._peak = max(self._peak, len(self))
        try:
            async with asyncio.timeout(max(0.0, timeout)):
                return await waiter.granted
        except BaseException as error:
            self._waiting.pop(waiter, None)
            if waiter.granted.done() and not waiter.granted.cancelled():
                # The slot was granted while this call timed out or was cancelled.
                self.release(waiter.granted.result())
            if isinstance(error, TimeoutError):
                raise TimeoutError(
                    f"no inference server accepted the call within {timeout:.0f} s: {self._reason_to_wait(session)}"
                ) from None
            raise

    def release(self, replica: Replica) -> None:
        """Return a slot and give it to the next waiting call."""
        replica.load -= 1
        self._admit(limit=1)

    def changed(self) -> None:
        """Admit waiting calls after the state of a replica has changed."""
        self._admit(limit=len(self))

    def untried(self, tried: Collection[Replica]) -> bool:
        """Return True if a replica outside `tried` is open."""
        return any(replica.state == "open" and replica not in tried for replica in self.replicas)

    def _admit(self, limit: int) -> None:
        if not self._waiting:
            return
        for waiter in list(self._waiting):
            if waiter.granted.done():
                continue  # cancelled or timed out, but its task has not removed it yet
            replica = self._choose(waiter.session, waiter.avoid)
            if replica is None:
                continue
            del self._waiting[waiter]
            waiter.granted.set_result(self._assign(replica, waiter.session))
            limit -= 1
            if limit <= 0:
                return

    def _choose(self, session: Caller | None, avoid: Collection[Replica]) -> Replica | None:
        cached = self._cached_at(session)
        if cached is not None and cached not in avoid:
            # Wait for this replica even if others are idle, to reuse its cached prefix.
            return cached if self._has_capacity(cached) else None
        usable = [replica for replica in self.replicas if replica.state == "open"]
        if avoid:
            usable = [replica for replica in usable if replica not in avoid] or usable
        free = [replica for replica in usable if self._has_capacity(replica)]
        return min(free, key=lambda replica: replica.load + replica.sessions, default=None)

    def _cached_at(self, session: Caller | None) -> Replica | None:
        """Return the replica that still caches the prefix of a session, or None."""
        cached = None if session is None else session.replica
        return cached if cached is not None and cached.state != "down" and cached in self.replicas else None

    def _has_capacity(self, replica: Replica) -> bool:
        return replica.state == "open" and (self.bound is None or replica.load < self.bound)

    def _assign(self, replica: Replica, session: Caller | None) -> Replica:
        replica.load += 1
        if session is not None and self._cached_at(session) is None:
            session.move(replica)
        return replica

    def _reason_to_wait(self, session: Caller | None) -> str:
        cached = self._cached_at(session)
        replica = cached or min(self.replicas, key=lambda replica: replica.state != "open")
        if replica.state == "open":
            return (
                f"{replica.url} has {replica.load} calls in flight, its limit; raise "
                "orchestrator.gateway.max_inflight_per_replica or add inference servers"
            )
        return f"{replica.url} is {replica.state} ({replica.reason})"
