"""Adaptive concurrency: fewer episodes in flight while model calls queue in the engine, more when they do not."""

import asyncio
from collections.abc import Awaitable, Callable

PERIOD_SECONDS = 0.25
"""Seconds between two measurements of the engine's queue."""
WINDOW = 8
"""Measurements per decision. A queue is *standing* if all of them are above 0. The minimum ignores short bursts, at the
start of a group or after a weight update."""
BACKOFF = 0.75
"""Minimum fraction of the episodes in flight that one decision keeps."""
GROWTH_DIVISOR = 8
"""One decision raises the limit by 1 / `GROWTH_DIVISOR` of itself, at least by 1."""


class AdaptiveConcurrency:
    """Limit of episodes in flight between `minimum` and `maximum`, which grows slowly and backs off fast.

    Calls in a standing queue only age, so the limit drops by the length of the queue, but at most by a quarter. Without
    a standing queue it grows by an eighth, if the current limit was reached. It starts at `maximum`.
    """

    def __init__(self, minimum: int, maximum: int) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.limit = maximum
        self._queues: list[int] = []
        self._in_flight: list[int] = []

    def observe(self, queue: int, in_flight: int) -> int:
        """Record one measurement and return the limit.

        Args:
            queue: model calls that wait in the engine.
            in_flight: episodes in flight.
        """
        self._queues.append(queue)
        self._in_flight.append(in_flight)
        if len(self._queues) == WINDOW:
            self._decide(min(self._queues), max(self._in_flight))
            self._queues.clear()
            self._in_flight.clear()
        return self.limit

    def _decide(self, standing: int, in_flight: int) -> None:
        if standing > 0:
            lower = max(in_flight - standing, int(BACKOFF * in_flight))
            self.limit = max(self.minimum, min(self.limit, lower))
        elif in_flight >= self.limit:  # an unused limit was not tested, so it does not grow
            self.limit = min(self.maximum, self.limit + max(1, self.limit // GROWTH_DIVISOR))


async def adapt(
    concurrency: AdaptiveConcurrency,
    queue: Callable[[], Awaitable[int | None]],
    in_flight: Callable[[], int],
    apply: Callable[[int], None],
    seconds: float = PERIOD_SECONDS,
) -> None:
    """Measure every `seconds` and `apply` the limit. Runs until cancelled.

    `queue` returns None if no engine reports its queue, and then the limit stays.
    """
    while True:
        waiting = await queue()
        if waiting is not None:
            apply(concurrency.observe(waiting, in_flight()))
        await asyncio.sleep(seconds)
