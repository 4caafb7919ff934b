"""Adaptive concurrency: fewer episodes in flight while model calls queue in the engine, more while it keeps up."""

import asyncio
from collections.abc import Awaitable, Callable

PERIOD_SECONDS = 0.25
"""Pause between two looks at the engine."""
WINDOW = 8
"""Looks between two decisions. A queue *stands* when none of them found the engine without one: the burst of calls at
the start of a group, or while weights change, does not."""
BACKOFF = 0.75
"""What is left of the episodes in flight, at least, after a decision to back off."""
GROWTH = 8
"""The limit grows by one part in so many with a decision."""


class AdaptiveConcurrency:
    """Grows slowly and backs off fast, within `least` and `most`; starts at `most`.

    A standing queue is work that waits for its turn while it ages: the limit goes down by as many episodes as wait, but
    by no more than a quarter. Without one, and with as many episodes in flight as allowed, it goes up by an eighth.
    """

    def __init__(self, least: int, most: int) -> None:
        self.least = least
        self.most = most
        self.limit = most
        self._queues: list[int] = []
        self._flights: list[int] = []

    def observe(self, queue: int, in_flight: int) -> int:
        """Take a look at the engine: model calls that wait in it, and episodes in flight. Returns the limit."""
        self._queues.append(queue)
        self._flights.append(in_flight)
        if len(self._queues) == WINDOW:
            self._decide(min(self._queues), max(self._flights))
            self._queues.clear()
            self._flights.clear()
        return self.limit

    def _decide(self, standing: int, in_flight: int) -> None:
        if standing > 0:
            lower = max(in_flight - standing, int(BACKOFF * in_flight))
            self.limit = max(self.least, min(self.limit, lower))
        elif in_flight >= self.limit:
            self.limit = min(self.most, self.limit + max(1, self.limit // GROWTH))


async def adapt(
    concurrency: AdaptiveConcurrency,
    queue: Callable[[], Awaitable[int | None]],
    in_flight: Callable[[], int],
    apply: Callable[[int], None],
    seconds: float = PERIOD_SECONDS,
) -> None:
    """Look, decide, `apply` the limit; runs until cancelled. `queue` gives None where the engine does not say."""
    while True:
        waiting = await queue()
        if waiting is not None:
            apply(concurrency.observe(waiting, in_flight()))
        await asyncio.sleep(seconds)
