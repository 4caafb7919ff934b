"""Starting, watching and stopping the processes of a run.

If one process dies, all stop; nothing outlives the launcher, not even when the launcher itself is killed.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from braidrl.utils.log import tail

PR_SET_PDEATHSIG = 1


class ProcessFailed(RuntimeError):
    """A process of the run ended although it should not have, or ended with an error."""

    def __init__(self, name: str, code: int, log: Path) -> None:
        self.name = name
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        super().__init__(f"{name} {how}; last lines of {log}:\n{tail(log)}")


@dataclass
class Child:
    """One started process and the log that it writes."""

    popen: subprocess.Popen
    log: Path
    stream: IO[bytes]
    ends: bool
    """Whether ending with exit code 0 is its normal course (a server never ends by itself)."""


class Supervisor:
    """The processes of one run. Leaving the context stops them all."""

    def __init__(self, stop_timeout: float) -> None:
        self.stop_timeout = stop_timeout
        self.children: dict[str, Child] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str, args: list[str], log: Path, env: Mapping[str, str], ends: bool = True) -> None:
        """Start `braid ARGS` in its own process group, its output appended to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        stream = log.open("ab")
        popen = subprocess.Popen(
            [sys.executable, "-m", "braidrl.cli", *args],
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **env},
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - no thread runs yet
        )
        self.children[name] = Child(popen, log, stream, ends)

    def check(self) -> None:
        """Raise `ProcessFailed` for the first process that is not running and should be."""
        for name, child in self.children.items():
            code = child.popen.poll()
            if code is not None and (code != 0 or not child.ends):
                raise ProcessFailed(name, code, child.log)

    def finished(self) -> bool:
        """Whether every process that ends by itself has ended well."""
        return all(child.popen.poll() == 0 for child in self.children.values() if child.ends)

    def stop(self) -> None:
        """Ask every process to end, wait `stop_timeout` seconds for all of them together, kill the rest."""
        for child in self.children.values():
            _signal_group(child, signal.SIGTERM)
        deadline = time.monotonic() + self.stop_timeout
        for child in self.children.values():
            try:
                child.popen.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            _signal_group(child, signal.SIGKILL)
            child.popen.wait()
            child.stream.close()
        self.children.clear()


def _signal_group(child: Child, number: int) -> None:
    try:
        os.killpg(child.popen.pid, number)
    except ProcessLookupError:
        pass


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
