"""One process on one machine: SIGTERM as an interrupt, cores and threads, ports, the limit of open files, pauses of the
garbage collector."""

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


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(threads: int | None) -> dict[str, str]:
    """Environment of a process that computes with `threads` threads (None: unchanged). Idle threads sleep rather than
    spin, since another process of the run wants the core."""
    shared = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
    return shared if threads is None else {**shared, "OMP_NUM_THREADS": str(threads)}


def free_port(host: str) -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def allow_open_files() -> None:
    """Raise this process's limit of open files as far as it may; nothing where the system has no such limit."""
    if sys.platform == "win32":
        return
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


YOUNG = 50_000
"""New objects, less those that are gone, after which the collector looks at them (Python: 700)."""


def freeze_gc() -> None:
    """Collect once, leave what is there to itself from now on (modules, configs, tokenizers), and collect less often.

    A full collection visits every object, and nothing else happens meanwhile: 0.2 to 0.3 s for the half million objects
    of verifiers and transformers, again and again under load. Nearly everything is freed by its reference count: an
    episode leaves about a hundred small objects to the collector, a call of the gateway none.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
