"""Supervision of the processes of a run, for any launcher.

If a process fails, all are stopped. An inference server that was up is restarted first, up to `max_restarts` times.
"""

import http.client
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from braidrl.launch.contract import Launcher, Process, ProcessExit
from braidrl.utils.log import tail

WINDOW = 600.0
"""Seconds over which restarts are counted."""
RESTART_DELAY = 1.0
"""Seconds before the first restart of a server. Doubles with each further restart within `WINDOW`."""
HEALTH_TIMEOUT = 0.5
"""Timeout of a health check of a starting server, in seconds."""


class ProcessFailed(RuntimeError):
    """Processes of the run failed or exited unexpectedly. The message contains the last lines of their logs.

    Args:
        ends: the processes and their exits.
    """

    def __init__(self, ends: list[tuple[Process, ProcessExit]]) -> None:
        # Killed processes (code < 0) come first: they usually caused the errors of the others.
        ordered = sorted(ends, key=lambda each: each[1].code > 0)
        super().__init__("\n".join(_describe_exit(process, end) for process, end in ordered))


@dataclass
class SupervisedProcess:
    """State of one process."""

    process: Process
    was_up: bool = False
    """True once a health check has succeeded."""
    restarts: deque[float] = field(default_factory=deque)
    """Times of its restarts within `WINDOW`, by `time.monotonic`."""
    due: float | None = None
    """Time of the scheduled restart, by `time.monotonic`; None if none is scheduled."""


def _unchanged(process: Process) -> Process:
    return process


class Supervisor:
    """Starts, checks and restarts the processes of one run. Leaving the context stops all of them.

    Args:
        launcher: launcher that runs the processes.
        renew: returns the process that replaces one that ended, or None while it cannot be placed.
    """

    def __init__(self, launcher: Launcher, renew: Callable[[Process], Process | None] = _unchanged) -> None:
        self.launcher = launcher
        self.renew = renew
        self.supervised: dict[str, SupervisedProcess] = {}
        self.restarts = 0
        """Total number of server restarts."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.launcher.stop()

    def start(self, process: Process) -> None:
        """Start a process and supervise it."""
        self.launcher.start(process)
        self.supervised[process.name] = SupervisedProcess(process)

    def check(self) -> None:
        """Restart servers that are due. Raises `ProcessFailed` if a process failed and is not restarted."""
        failed: list[tuple[Process, ProcessExit]] = []
        for each in self.supervised.values():
            if each.due is not None:
                self._restart_if_due(each)
                continue
            end = self.launcher.poll(each.process.name)
            if end is None:
                each.was_up = each.was_up or _is_healthy(each.process)
            elif (end.code != 0 or not each.process.ends) and not self._schedule_restart(each, end):
                failed.append((each.process, end))
        if failed:
            raise ProcessFailed(failed)

    def finished(self) -> bool:
        """Return True if every process that is expected to end has exited with code 0."""
        ends = [
            self.launcher.poll(each.process.name) for each in self.supervised.values() if each.process.ends
        ]
        return all(end is not None and end.code == 0 for end in ends)

    def _schedule_restart(self, each: SupervisedProcess, end: ProcessExit) -> bool:
        """Schedule a restart and return True, or return False if the process was never up or has no restarts left."""
        now, limit = time.monotonic(), each.process.max_restarts
        while each.restarts and each.restarts[0] < now - WINDOW:
            each.restarts.popleft()
        if not each.was_up or len(each.restarts) >= limit:
            return False
        delay = RESTART_DELAY * 2 ** len(each.restarts)
        each.restarts.append(now)
        each.due = now + delay
        print(
            f"{_describe_exit(each.process, end)}\nrestarting in {delay:g} s (restart {len(each.restarts)} of {limit} "
            f"within {WINDOW / 60:g} minutes)",
            flush=True,
        )
        return True

    def _restart_if_due(self, each: SupervisedProcess) -> None:
        if each.due is None or time.monotonic() < each.due:
            return
        process = self.renew(each.process)
        if process is None:
            return
        self.launcher.start(process)
        each.process, each.due = process, None
        self.restarts += 1


def _describe_exit(process: Process, end: ProcessExit) -> str:
    return f"{process.name} {end.how}; last lines of {process.log}:\n{tail(process.log)}"


def _is_healthy(process: Process) -> bool:
    """Return True if a restartable server passes its health check. False for all other processes."""
    if process.health is None or process.max_restarts == 0:
        return False
    connection = http.client.HTTPConnection(process.health.host, process.health.port, timeout=HEALTH_TIMEOUT)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
