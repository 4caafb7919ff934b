"""Interface of launchers: this machine, Ray and SLURM."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Slot:
    """Resources that one process requires."""

    name: str
    """Name of the process and of its log, such as `inference_0` or `trainer_rank1`."""
    kind: str
    """Command that it runs: `inference`, `orchestrator` or `trainer`."""
    index: int = 0
    """Index of the replica, or global rank."""
    machine: int = 0
    """Index of the machine, if the launcher numbers its machines."""
    local_rank: int = 0
    """Rank within its machine."""
    threads: int | None = None
    """Number of CPU threads; None: all of the machine."""
    gpus: int = 0
    """Number of GPUs that it computes on. Ignored on machines without GPUs."""
    devices: tuple[int, ...] = ()
    """Indices of the GPUs visible to it on its machine. Empty: all."""
    port: int | None = None
    """Port to listen on; None: any free port."""


@dataclass(frozen=True)
class Placement:
    """Address assigned to a process."""

    host: str
    """Host name or IP address at which the other processes of the run reach it."""
    port: int
    """Free port on that host."""


@dataclass(frozen=True)
class Process:
    """Command to run as one process."""

    name: str
    args: tuple[str, ...]
    """Command-line arguments after `braid`."""
    log: Path
    """File to which its output is appended."""
    env: Mapping[str, str]
    """Variables added to the inherited environment."""
    ends: bool = True
    """True if the process is expected to exit with code 0. False for servers, which run until they are stopped."""
    health: Placement | None = None
    """Address where `GET /health` returns 200 once it is up; None if the process is not a server."""
    max_restarts: int = 0
    """Maximum number of restarts within `supervisor.WINDOW`, for a server that was up."""


@dataclass(frozen=True)
class ProcessExit:
    """Exit of a process."""

    code: int
    """Exit code; negative: the signal that killed it, as in `subprocess`."""
    how: str
    """Description for messages, used after the name of the process: `ended with exit code 1`."""

    @classmethod
    def of(cls, code: int) -> "ProcessExit":
        """Create from an exit code of `subprocess`."""
        killed = code < 0
        return cls(
            code, f"was killed by {signal.Signals(-code).name}" if killed else f"ended with exit code {code}"
        )


class Launcher(Protocol):
    """Places, starts and stops the processes of one run. All calls come from one thread and must return promptly."""

    moves: bool
    """True if a process that is placed again may get another address."""
    placement_timeout: float
    """Maximum time to wait for a placement, in seconds."""

    def place(self, slot: Slot) -> Placement | None:
        """Return the address of the slot's process, or None if none is available yet and the caller should retry.

        The address stays the same until the machine or actor is lost.
        """

    def start(self, process: Process) -> None:
        """Start a process at its placement, if it has one. Restart it if it has ended."""

    def poll(self, name: str) -> ProcessExit | None:
        """Return the exit of a process, or None while it is running."""

    def stop(self) -> None:
        """Terminate every process, kill those that do not exit in time, and release reserved resources."""

    def shortage(self) -> str:
        """Return the available resources and the remedy, for the error after `placement_timeout`."""
