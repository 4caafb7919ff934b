"""Watching the processes of a run, wherever a launcher has started them.

If one dies, all stop; but an inference server that was up is started anew, some times.
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
"""Seconds in which `max_restarts` are counted."""
PAUSE = 1.0
"""Seconds between the end of a server and its new start; doubled with each further one in the window."""
HEALTH_TIMEOUT = 0.5
"""Longest wait for the answer of a server that is not up yet, in seconds."""


class ProcessFailed(RuntimeError):
    """Processes of the run ended although they should not have, or ended with an error."""

    def __init__(self, ends: list[tuple[Process, ProcessExit]]) -> None:
        first = sorted(ends, key=lambda each: each[1].code > 0)  # what was killed took the others with it
        super().__init__("\n".join(f"{_told(process, end)}" for process, end in first))


@dataclass
class SupervisedProcess:
    """A process under supervision."""

    process: Process
    was_up: bool = False
    """Whether it has answered."""
    restarts: deque[float] = field(default_factory=deque)
    """When it was started anew, within the window."""
    due: float | None = None
    """When it is to be started anew; None: it has been."""


def _same_again(process: Process) -> Process:
    return process


class Supervisor:
    """The processes of one run. Leaving the context stops them all.

    Args:
        launcher: starts them.
        renew: the process to start in the place of one that ended; None while there is no place for it.
    """

    def __init__(self, launcher: Launcher, renew: Callable[[Process], Process | None] = _same_again) -> None:
        self.launcher = launcher
        self.renew = renew
        self.watched: dict[str, SupervisedProcess] = {}
        self.restarts = 0
        """How often a server was started anew."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.launcher.stop()

    def start(self, process: Process) -> None:
        """Start a process, and watch it from now on."""
        self.launcher.start(process)
        self.watched[process.name] = SupervisedProcess(process)

    def check(self) -> None:
        """Start anew what is due. Raises `ProcessFailed` where a process is not running and should be."""
        failed: list[tuple[Process, ProcessExit]] = []
        for each in self.watched.values():
            if each.due is not None:
                self._renew(each)
                continue
            end = self.launcher.poll(each.process.name)
            if end is None:
                each.was_up = each.was_up or _answers(each.process)
            elif (end.code != 0 or not each.process.ends) and not self._forgive(each, end):
                failed.append((each.process, end))
        if failed:
            raise ProcessFailed(failed)

    def finished(self) -> bool:
        """Whether every process that ends by itself has ended well."""
        ends = [self.launcher.poll(each.process.name) for each in self.watched.values() if each.process.ends]
        return all(end is not None and end.code == 0 for end in ends)

    def _forgive(self, each: SupervisedProcess, end: ProcessExit) -> bool:
        """Whether a process that has ended is started anew."""
        now, most = time.monotonic(), each.process.max_restarts
        while each.restarts and each.restarts[0] < now - WINDOW:
            each.restarts.popleft()
        if not each.was_up or len(each.restarts) >= most:
            return False
        pause = PAUSE * 2 ** len(each.restarts)
        each.restarts.append(now)
        each.due = now + pause
        print(
            f"{_told(each.process, end)}\nit is started anew in {pause:g} s ({len(each.restarts)} of {most} times in "
            f"{WINDOW / 60:g} minutes)",
            flush=True,
        )
        return True

    def _renew(self, each: SupervisedProcess) -> None:
        if each.due is None or time.monotonic() < each.due:
            return
        process = self.renew(each.process)
        if process is None:
            return
        self.launcher.start(process)
        each.process, each.due = process, None
        self.restarts += 1


def _told(process: Process, end: ProcessExit) -> str:
    return f"{process.name} {end.how}; last lines of {process.log}:\n{tail(process.log)}"


def _answers(process: Process) -> bool:
    """Whether a server is up; asked only until it is, and of those that may be started anew."""
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
