"""A launcher that starts no processes, for tests of code that uses launchers."""

from dataclasses import dataclass, field

from braidrl.launch.contract import Placement, Process, ProcessExit, Slot


@dataclass
class FakeLauncher:
    """Launcher whose processes end when the test ends them."""

    moves = True
    placement_timeout = 0.0
    started: list[Process] = field(default_factory=list)
    ends: dict[str, ProcessExit] = field(default_factory=dict)

    def place(self, slot: Slot) -> Placement | None:
        raise NotImplementedError

    def start(self, process: Process) -> None:
        self.started.append(process)
        self.ends.pop(process.name, None)

    def poll(self, name: str) -> ProcessExit | None:
        return self.ends.get(name)

    def stop(self) -> None:
        self.started.clear()

    def shortage(self) -> str:
        return "there are no more machines"
