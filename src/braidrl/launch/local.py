"""Launcher for this machine."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from braidrl.launch.contract import Placement, Process, ProcessExit, Slot
from braidrl.utils.process import free_port

PR_SET_PDEATHSIG = 1  # from linux/prctl.h
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
LOOPBACK = "127.0.0.1"


@dataclass
class Child:
    """One started process and its open log."""

    popen: subprocess.Popen
    stream: IO[bytes]


class LocalLauncher:
    """Runs processes as children of this process. On Linux they are terminated when this process is killed.

    Args:
        stop_timeout: seconds between SIGTERM and SIGKILL.
        devices: names of the GPUs that slots divide, in the format of `CUDA_VISIBLE_DEVICES`.
        host: address of this machine for the other processes of the run.
    """

    moves = False
    placement_timeout = 0.0

    def __init__(self, stop_timeout: float, devices: Sequence[str] = (), host: str = LOOPBACK) -> None:
        self.stop_timeout = stop_timeout
        self.devices = devices
        self.host = host
        self.slots: dict[str, Slot] = {}
        self.places: dict[str, Placement] = {}
        self.children: dict[str, Child] = {}

    def place(self, slot: Slot) -> Placement:
        """Return this machine and a port that no other slot has."""
        if slot.name not in self.places:
            self.slots[slot.name], self.places[slot.name] = slot, self._choose(slot)
        return self.places[slot.name]

    def _choose(self, slot: Slot) -> Placement:
        # A port stays free until its process binds it, so the same one may be found for several slots.
        taken = {place.port for place in self.places.values()}
        port = slot.port
        while port is None or (slot.port is None and port in taken):
            port = free_port(self.host)
        return Placement(self.host, port)

    def start(self, process: Process) -> None:
        """Start a process in its own process group, so that `stop` also reaches its children."""
        if (ended := self.children.get(process.name)) is not None:
            _close(ended)
        process.log.parent.mkdir(parents=True, exist_ok=True)
        stream = process.log.open("ab")
        popen = subprocess.Popen(
            self.command(process),
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **process.env},
            start_new_session=True,
            preexec_fn=_die_with_parent if LIBC is not None else None,  # noqa: PLW1509 - takes no lock
        )
        self.children[process.name] = Child(popen, stream)

    def command(self, process: Process) -> list[str]:
        """Return the command line of `process`, limited to the GPUs of its slot."""
        slot, visible = self.slots.get(process.name), []
        if slot is not None and slot.devices:
            names = self.devices or [str(index) for index in range(max(slot.devices) + 1)]
            visible = ["env", f"CUDA_VISIBLE_DEVICES={','.join(names[index] for index in slot.devices)}"]
        return [*visible, sys.executable, "-m", "braidrl.cli", *process.args]

    def poll(self, name: str) -> ProcessExit | None:
        """Return the exit of a process, or None while it is running."""
        code = self.children[name].popen.poll()
        return None if code is None else ProcessExit.of(code)

    def stop(self) -> None:
        """Send SIGTERM to all processes, wait `stop_timeout` seconds in total, and kill the rest."""
        for child in self.children.values():
            _signal_group(child, signal.SIGTERM)
        deadline = time.monotonic() + self.stop_timeout
        for child in self.children.values():
            try:
                child.popen.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            _close(child)
        self.children.clear()

    def shortage(self) -> str:
        """Return a description of the available resources. Never needed: `place` always succeeds."""
        return "processes on this machine need no reservation"


def _close(child: Child) -> None:
    """Kill a process and its children, and close its log."""
    _signal_group(child, signal.SIGKILL)
    child.popen.wait()
    child.stream.close()


def _signal_group(child: Child, number: int) -> None:
    try:
        os.killpg(child.popen.pid, number)
    except ProcessLookupError:
        pass


def _die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # type: ignore[union-attr]
