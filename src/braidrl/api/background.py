"""An event loop beside a caller who has none, or, in a notebook, has one that is busy running the caller."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any, TypeVar

Result = TypeVar("Result")

POLL_SECONDS = 0.2
"""Pause between two looks at what could make waiting vain."""
STOP_SECONDS = 30.0
"""Longest wait for what runs to end."""


class Background:
    """Runs coroutines in a thread of its own, which never keeps the program from ending."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = Thread(target=asyncio.run, args=(self._live(started),), name="braidrl", daemon=True)
        self._thread.start()
        self._loop = started.result(STOP_SECONDS)

    async def _live(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        started.set_result(asyncio.get_running_loop())
        await self._stop.wait()

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Let it run; cancelling the future cancels it. Raises `RuntimeError` after `close`."""
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("it was closed; open a new one")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, Result], check: Callable[[], None]) -> Result:
        """Wait for its result. `check` is called now and then; what it raises, or an interrupt, cancels the work."""
        future = self.start(work)
        try:
            while not wait({future}, timeout=POLL_SECONDS).done:
                check()
            return future.result()
        finally:
            future.cancel()

    def close(self) -> None:
        """Cancel what still runs, and stop."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_SECONDS)
