"""The record of a run: who launched it, where, when, with what, and how it ended (`run.json`)."""

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
"""A run on another machine is taken for dead when its folder has not moved for so long."""


class Launch(msgspec.Struct):
    """One time that the run was started, or continued."""

    command: list[str]
    """The command line."""
    folder: str
    """The working directory."""
    host: str
    pid: int
    """The launcher."""
    born: int | None
    """When the kernel started it, in its own ticks: tells it from a later process of that number."""
    after: int
    """The step that it continued after; 0: from the start."""
    started: float
    """Seconds since 1970."""
    surroundings: Surroundings
    repositories: list[Repository]
    status: Literal["running", "done", "failed", "interrupted"] = "running"
    """As its launcher wrote it last: one that was killed could not say so (`outcome` finds out)."""
    ended: float | None = None
    error: str | None = None
    """What failed, and how."""


class RunRecord(msgspec.Struct):
    """`run.json`."""

    launches: list[Launch]
    """Oldest first."""


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    status: Literal["running", "done", "failed", "interrupted", "killed", "unknown"]
    """`killed`: its launcher is gone and could not say how it ended; `unknown`: the folder has no record."""
    error: str | None = None
    ended: float | None = None
    """Of a killed run, when its folder moved last."""


@contextmanager
def recorded(run: RunFolder, after: int = 0) -> Iterator[None]:
    """Record in `run` what happens inside: that it runs, and then how it ended. SIGTERM interrupts it.

    Args:
        after: the step that it continues after.
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
            launch.error = None if launch.status == "interrupted" else _first_words(error)
            raise
        else:
            launch.status = "done"
        finally:
            launch.ended = time.time()
            write()


def read_record(run: RunFolder) -> list[Launch]:
    """The launches of a run, oldest first; none where it has no record.

    Raises `ValueError` where there is one that cannot be read.
    """
    if not run.record.is_file():
        return []
    try:
        return msgspec.json.decode(run.record.read_bytes(), type=RunRecord).launches
    except msgspec.MsgspecError as error:
        raise ValueError(f"{run.record} is no record of a run: {error}; remove it or restore it") from None


def outcome(run: RunFolder) -> Outcome:
    """What became of a run's last launch, also where its launcher could not say so.

    On its own machine the launcher's process is looked for; elsewhere the age of the folder's heartbeat decides.
    """
    launches = read_record(run)
    if not launches:
        return Outcome("unknown")
    last = launches[-1]
    if last.status != "running":
        return Outcome(last.status, last.error, last.ended)
    moved = _moved(run)
    alive = _born(last.pid) is not None if last.host == platform.node() else None
    if alive and last.born is not None:
        alive = _born(last.pid) == last.born
    if alive is None:
        alive = time.time() - moved < SILENT_SECONDS
    return Outcome("running") if alive else Outcome("killed", ended=moved)


def _launch(after: int) -> Launch:
    return Launch(
        command=[Path(sys.argv[0]).name, *sys.argv[1:]],
        folder=str(Path.cwd()),
        host=platform.node(),
        pid=os.getpid(),
        born=_born(os.getpid()),
        after=after,
        started=time.time(),
        surroundings=Surroundings.found(),
        repositories=Repository.found(),
    )


def _first_words(error: BaseException) -> str:
    """What failed, without the lines of its log that follow."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line.partition("; last lines")[0]


def _moved(run: RunFolder) -> float:
    """When the run last gave a sign of life, in seconds since 1970."""
    live = read_live(run.live)
    return max(run.record.stat().st_mtime, live.time if live is not None else 0.0)


def _born(pid: int) -> int | None:
    """Start of a process in the kernel's ticks (0 where the system does not tell); None: there is none."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            return int(stat.read_text().rpartition(")")[2].split()[19])
        except (OSError, IndexError):
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0
