"""Record of a run (`run.json`): command, machine, versions and outcome of every launch."""

import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from braidrl.monitors.live import read_live
from braidrl.monitors.surroundings import Repository, Surroundings, packages
from braidrl.utils.process import terminable
from braidrl.utils.publish import publish_bytes
from braidrl.utils.run_folder import RunFolder

SILENT_SECONDS = 120.0
"""Seconds without a change in the run folder after which a run on another machine counts as killed."""


class Launch(msgspec.Struct):
    """One start or resumption of the run."""

    command: list[str]
    """Command line."""
    folder: str
    """Working directory."""
    host: str
    pid: int
    """Process id of the launcher."""
    born: int | None
    """Start time of the launcher in kernel ticks. Distinguishes it from a later process with the same id."""
    after: int
    """Last step before the launch; 0 if it started from the beginning."""
    started: float
    """Seconds since the epoch."""
    surroundings: Surroundings
    repositories: list[Repository]
    status: Literal["running", "done", "failed", "interrupted"] = "running"
    """Status last written by the launcher. It stays `running` if the launcher was killed; use `outcome`."""
    ended: float | None = None
    error: str | None = None
    """First line of the error."""


class RunRecord(msgspec.Struct):
    """Content of `run.json`."""

    launches: list[Launch]
    """Launches, oldest first."""


@dataclass(frozen=True)
class Outcome:
    """State of a run's last launch."""

    status: Literal["running", "done", "failed", "interrupted", "killed", "unknown"]
    """`killed`: the launcher is gone without recording an end. `unknown`: the folder has no record."""
    error: str | None = None
    ended: float | None = None
    """Time of the end; for a killed run, time of its last sign of life."""


@contextmanager
def recorded(run: RunFolder, after: int = 0) -> Iterator[None]:
    """Record the start and the outcome of the body in `run`. SIGTERM raises `Terminated` in the body.

    Args:
        after: last step before this launch, 0 for a new run.
    """
    launch = _launch(after)
    launches = [*read_record(run), launch]
    publish_bytes(run.packages, packages().encode())

    def write() -> None:
        text = msgspec.json.format(msgspec.json.encode(RunRecord(launches)), indent=2)
        publish_bytes(run.record, text + b"\n")

    with terminable():
        write()
        try:
            yield
        except BaseException as error:
            launch.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            launch.error = None if launch.status == "interrupted" else _first_line(error)
            raise
        else:
            launch.status = "done"
        finally:
            launch.ended = time.time()
            write()


def read_record(run: RunFolder) -> list[Launch]:
    """Return the launches of a run, oldest first. Empty if the run has no record.

    Raises `ValueError` if the record cannot be read.
    """
    if not run.record.is_file():
        return []
    try:
        return msgspec.json.decode(run.record.read_bytes(), type=RunRecord).launches
    except msgspec.MsgspecError as error:
        raise ValueError(f"{run.record} is not a run record: {error}; remove or restore it") from None


def outcome(run: RunFolder) -> Outcome:
    """Return the state of a run's last launch, even if its launcher was killed.

    On the same machine this checks the launcher's process. For other machines the age of the live state decides.
    """
    launches = read_record(run)
    if not launches:
        return Outcome("unknown")
    last = launches[-1]
    if last.status != "running":
        return Outcome(last.status, last.error, last.ended)
    heartbeat = _last_heartbeat(run)
    alive = _start_ticks(last.pid) is not None if last.host == platform.node() else None
    if alive and last.born is not None:
        alive = _start_ticks(last.pid) == last.born
    if alive is None:
        alive = time.time() - heartbeat < SILENT_SECONDS
    return Outcome("running") if alive else Outcome("killed", ended=heartbeat)


def _launch(after: int) -> Launch:
    return Launch(
        command=[Path(sys.argv[0]).name, *sys.argv[1:]],
        folder=str(Path.cwd()),
        host=platform.node(),
        pid=os.getpid(),
        born=_start_ticks(os.getpid()),
        after=after,
        started=time.time(),
        surroundings=Surroundings.found(),
        repositories=Repository.found(),
    )


def _first_line(error: BaseException) -> str:
    """Return the first line of an error, without the log lines quoted after it."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line.partition("; last lines")[0]


def _last_heartbeat(run: RunFolder) -> float:
    """Return the time of the run's last sign of life, in seconds since the epoch."""
    live = read_live(run.live)
    return max(run.record.stat().st_mtime, live.time if live is not None else 0.0)


def _start_ticks(pid: int) -> int | None:
    """Return the start time of a process in kernel ticks, 0 on systems without /proc, or None if it does not exist."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            # Field 22 is starttime. The command (field 2) may contain spaces and parentheses, so split after it.
            return int(stat.read_text().rpartition(")")[2].split()[19])
        except (OSError, IndexError):
            return None
    try:
        os.kill(pid, 0)  # signal 0 only checks that the process exists
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0
