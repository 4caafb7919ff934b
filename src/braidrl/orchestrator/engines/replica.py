"""One inference server of a pool: state, load and version of its weights."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from braidrl.orchestrator.engines.weight_update import WeightUpdate, update_embedded

State = Literal["open", "updating", "asleep", "down"]


@dataclass(eq=False)
class Replica:
    """One inference server."""

    url: str
    """Base URL, without a trailing `/v1`."""
    state: State = "down"
    """`open`: accepts requests. `updating`: is loading weights. `asleep`: the trainer uses its device. `down`: died,
    hangs, or restarted with unknown weights."""
    version: int | None = None
    """Last acknowledged policy version, or None for a frozen model."""
    load: int = 0
    """Number of requests in flight."""
    sessions: int = 0
    """Number of sessions whose prefix it caches."""
    calls: set[asyncio.Timeout] = field(default_factory=set)
    """Deadlines of the requests in flight."""
    reason: str = "has not answered yet"
    """Reason why it accepts no requests."""
    suspected: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a connection broke, to trigger a health check."""
    sleeps: bool = False
    """True if it must be woken up before a weight update."""
    take_weights: WeightUpdate = update_embedded
    """Function that loads new weights into it."""

    def abandon(self) -> None:
        """Expire the deadlines of all requests in flight, so that callers retry them on other replicas."""
        now = asyncio.get_running_loop().time()
        for deadline in self.calls:
            if not deadline.expired():
                deadline.reschedule(now)
