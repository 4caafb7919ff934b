"""Sharing the cores of one machine among the processes of a run."""

import os


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(threads: int | None) -> dict[str, str]:
    """Environment of a process that computes with `threads` threads (None: unchanged). Idle threads sleep rather than
    spin, since another process of the run wants the core."""
    shared = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
    return shared if threads is None else {**shared, "OMP_NUM_THREADS": str(threads)}
