"""What a launcher does, and what it is told: the same for this machine, Ray and SLURM."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Slot:
    """A process that is to be placed: what it needs."""

    name: str
    """Of the process and of its log: `inference_0`, `trainer_rank1`."""
    kind: str
    """`inference`, `orchestrator` or `trainer`: the command that it runs."""
    index: int = 0
    """Number of the replica or rank."""
    machine: int = 0
    """Number of the machine, where the launcher's are numbered."""
    local_rank: int = 0
    """Number among the ranks of its machine."""
    threads: int | None = None
    """CPU threads that it computes with; None: those of its machine."""
    gpus: int = 0
    """GPUs that it computes on, where there are GPUs."""
    devices: tuple[int, ...] = ()
    """Numbers of the GPUs of its machine that it sees; none: all that are there."""
    port: int | None = None
    """Port to listen on; None: a free one."""


@dataclass(frozen=True)
class Placement:
    """Where a process runs, or is about to."""

    host: str
    """Address at which the run's other processes reach it."""
    port: int
    """A port that is free there."""


@dataclass(frozen=True)
class Process:
    """A command to run."""

    name: str
    args: tuple[str, ...]
    """What follows `braid`."""
    log: Path
    """Its output is appended here."""
    env: Mapping[str, str]
    """Variables that are added to its environment."""
    ends: bool = True
    """Whether ending with exit code 0 is its normal course (a server never ends by itself)."""
    health: Placement | None = None
    """Where `GET /health` answers 200 once it is up; None: it serves nothing."""
    max_restarts: int = 0
    """Times in a while that it is started anew when it ends after it was up."""


@dataclass(frozen=True)
class ProcessExit:
    """How a process ended."""

    code: int
    how: str
    """In words that follow its name."""

    @classmethod
    def of(cls, code: int) -> "ProcessExit":
        """From an exit code as `subprocess` gives it."""
        killed = code < 0
        return cls(
            code, f"was killed by {signal.Signals(-code).name}" if killed else f"ended with exit code {code}"
        )


class Launcher(Protocol):
    """Places the processes of one run, runs them, and stops them. Calls are made by one thread and return soon."""

    moves: bool
    """Whether a process that is placed again may come to another address."""
    placement_timeout: float
    """Longest wait for a place, in seconds."""

    def place(self, slot: Slot) -> Placement | None:
        """Where the process of `slot` will run; None: nowhere yet, ask again. The same until that place is lost."""

    def start(self, process: Process) -> None:
        """Start it: at its place, if it was placed. One that has ended is started anew."""

    def poll(self, name: str) -> ProcessExit | None:
        """How it ended; None while it runs."""

    def stop(self) -> None:
        """Ask every process to end, and kill those that do not; what was taken is given back."""

    def shortage(self) -> str:
        """What there is instead of a place, for the error when the wait was too long."""
