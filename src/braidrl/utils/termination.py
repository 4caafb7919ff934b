"""SIGTERM as an interrupt, so that what runs is ended in order and its end is told."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM
"""What shells call the end by SIGTERM."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` in what is inside when SIGTERM comes. Further ones do not disturb how it ends.

    Python hears signals in the main thread only: elsewhere nothing changes.
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    with handler_kept():
        if _in_main_thread():
            signal.signal(signal.SIGTERM, terminate)
        yield


@contextmanager
def handler_kept() -> Iterator[None]:
    """Afterwards SIGTERM means what it meant before."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if _in_main_thread() and before is not None:  # None: it is no handler of Python's
            signal.signal(signal.SIGTERM, before)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
