"""Real gloo process groups, forked from a process that has already imported the required modules."""

import os
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

PRELOADED = ["braidrl.trainer.rl.step", "braidrl.transport.weights", "pytest"]


def run_ranks(count: int, work: Callable[..., None], *args: Any, timeout: float = 120.0) -> None:
    """Call `work(*args)`, a module-level function, in `count` processes of one group. Fails with the error of a
    process."""
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes, reports = [], []
    for rank in range(count):
        mine, its = context.Pipe(duplex=False)
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port}
        processes.append(context.Process(target=_rank, args=(names, its, work, args), daemon=True))
        processes[-1].start()
        its.close()
        reports.append(mine)
    deadline = time.monotonic() + timeout
    try:
        for rank, report in enumerate(reports):
            assert report.poll(max(0.0, deadline - time.monotonic())), f"rank {rank} took over {timeout} s"
            problem = report.recv()
            assert problem is None, f"rank {rank}: {problem}"
    finally:
        for process in processes:
            process.join(5)
            process.kill()


def _rank(
    names: dict[str, int], report: Connection, work: Callable[..., None], args: tuple[Any, ...]
) -> None:
    os.environ |= {name: str(value) for name, value in names.items()} | {"MASTER_ADDR": "127.0.0.1"}
    try:
        work(*args)
        report.send(None)
    except BaseException:
        report.send(traceback.format_exc())
