"""One inference server of a pool: its state, its load and the weights that it holds."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from braidrl.orchestrator.engines.weight_update import WeightUpdate, update_embedded

State = Literal["open", "updating", "asleep", "down"]


@dataclass(eq=False)
class Replica:
    """One inference server."""

    url: str
    """Address without a trailing `/v1`."""
    state: State = "down"
    """`open`: takes requests. `updating`: its weights change. `asleep`: the trainer has its device. `down`: it died,
    hangs, or restarts with unknown weights."""
    version: int | None = None
    """Policy version that it acknowledged; None for a frozen model."""
    load: int = 0
    """Requests that it works on."""
    sessions: int = 0
    """Sessions whose prefix it caches."""
    calls: set[asyncio.Timeout] = field(default_factory=set)
    """The deadlines of those requests."""
    reason: str = "has not answered yet"
    """Why it takes no requests."""
    suspected: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a connection to it broke, so that it is asked whether it is well."""
    sleeps: bool = False
    """Whether it must be woken before it takes weights."""
    take_weights: WeightUpdate = update_embedded
    """How it is given new weights."""

    def abandon(self) -> None:
        """End the wait for everything that it works on, so that others do it."""
        now = asyncio.get_running_loop().time()
        for deadline in self.calls:
            if not deadline.expired():
                deadline.reschedule(now)
