"""Settings of a process: SIGTERM handling, cores and threads, ports, open-file limit, garbage collector."""

import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM
"""Exit code that shells report for a process ended by SIGTERM."""


class Terminated(KeyboardInterrupt):
    """Raised when the process receives SIGTERM."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` in the body when SIGTERM arrives. Further SIGTERMs are ignored, so cleanup can finish.

    Python handles signals only in the main thread. In other threads this does nothing.
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
    """Restore the current SIGTERM handler on exit."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if _in_main_thread() and before is not None:  # None: not set from Python
            signal.signal(signal.SIGTERM, before)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(threads: int | None) -> dict[str, str]:
    """Return environment variables for a process with `threads` compute threads (None: library default).

    Idle threads sleep instead of spinning, because the processes of a run share the cores.
    """
    shared = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
    return shared if threads is None else {**shared, "OMP_NUM_THREADS": str(threads)}


def free_port(host: str) -> int:
    """Return a port that is currently free."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def allow_open_files() -> None:
    """Raise the soft limit of open files to the hard limit. Does nothing on Windows."""
    if sys.platform == "win32":
        return
    import resource

    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


YOUNG = 50_000
"""Threshold of the youngest generation: allocations minus deallocations before a collection (Python's default: 700)."""


def freeze_gc() -> None:
    """Collect once, exclude all existing objects (modules, configs, tokenizers) from later collections, and collect
    less often.

    A full collection stops the process while it visits every object: 0.2 to 0.3 s for the 500,000 objects of verifiers
    and transformers, repeatedly under load. Reference counting frees nearly everything: an episode leaves about a
    hundred small objects to the collector, a gateway call none.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
