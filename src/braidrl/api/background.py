"""Event loop in a background thread, for callers without one, and for notebooks, whose loop is running the caller."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any, TypeVar

Result = TypeVar("Result")

POLL_SECONDS = 0.2
"""Interval between calls of `check` while waiting for a result, in seconds."""
STOP_SECONDS = 30.0
"""Maximum time to wait for the thread to start or stop, in seconds."""


class Background:
    """Runs coroutines in a daemon thread with its own event loop."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = Thread(target=asyncio.run, args=(self._main(started),), name="braidrl", daemon=True)
        self._thread.start()
        self._loop = started.result(STOP_SECONDS)

    async def _main(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        started.set_result(asyncio.get_running_loop())
        # When this returns, `asyncio.run` cancels the remaining tasks.
        await self._stop.wait()

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Schedule a coroutine. Cancelling the returned future cancels it. Raises `RuntimeError` after `close`."""
        if not self._thread.is_alive():
            work.close()  # avoids the warning that it was never awaited
            raise RuntimeError("the loop is closed; open a new one")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, Result], check: Callable[[], None]) -> Result:
        """Run a coroutine and return its result.

        `check` is called periodically. If it raises, or on an interrupt, the coroutine is cancelled.
        """
        future = self.start(work)
        try:
            while not wait({future}, timeout=POLL_SECONDS).done:
                check()
            return future.result()
        finally:
            future.cancel()

    def close(self) -> None:
        """Cancel running coroutines and stop the thread."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_SECONDS)
