"""Supervision of processes: exits, failures, stopping, and restarts of servers."""

import asyncio
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from braidrl.launch import supervisor as module
from braidrl.launch.contract import Placement, Process, ProcessExit
from braidrl.launch.local import LocalLauncher
from braidrl.launch.supervisor import ProcessFailed, Supervisor
from braidrl.utils.log import tail
from braidrl.utils.process import available_cores, environment
from tests.support.fake_launcher import FakeLauncher
from tests.support.stub_engine import StubEngine


def process(folder: Path, *args: str, name: str = "helper", **more: bool) -> Process:
    return Process(name, args, folder / f"{name}.log", {}, **more)


def start(supervisor: Supervisor, process: Process) -> None:
    """Start a process and wait for its exit."""
    supervisor.start(process)
    assert isinstance(supervisor.launcher, LocalLauncher)
    supervisor.launcher.children[process.name].popen.wait(30)


def test_successful_exit(tmp_path: Path) -> None:
    with Supervisor(LocalLauncher(5.0)) as supervisor:
        start(supervisor, process(tmp_path, "--version"))
        supervisor.check()
        assert supervisor.finished()
    assert "braid " in (tmp_path / "helper.log").read_text()


def test_failed_exit_shows_code_and_last_log_lines(tmp_path: Path) -> None:
    with Supervisor(LocalLauncher(5.0)) as supervisor:
        start(supervisor, process(tmp_path, "nonsense"))
        with pytest.raises(
            ProcessFailed, match=r"helper ended with exit code 2(.|\n)*unknown command 'nonsense'"
        ):
            supervisor.check()


def test_exit_of_a_server_is_a_failure(tmp_path: Path) -> None:
    with Supervisor(LocalLauncher(5.0)) as supervisor:
        start(supervisor, process(tmp_path, "--version", name="server", ends=False))
        with pytest.raises(ProcessFailed, match="server ended with exit code 0"):
            supervisor.check()


def test_killed_process_is_reported_first(tmp_path: Path) -> None:
    for name in ("trainer", "trainer_rank1"):
        (tmp_path / f"{name}.log").write_text(f"words of {name}\n")
    ends = [
        (process(tmp_path, name="trainer"), ProcessExit.of(1)),
        (process(tmp_path, name="trainer_rank1"), ProcessExit.of(-9)),
    ]
    text = str(ProcessFailed(ends))
    assert text.startswith("trainer_rank1 was killed by SIGKILL")
    assert text.index("words of trainer_rank1") < text.index("trainer ended with exit code 1")


def test_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    launcher = LocalLauncher(0.5)
    with Supervisor(launcher) as supervisor:
        start(supervisor, process(tmp_path, "--version"))
        child = launcher.children["helper"]
        child.popen = subprocess.Popen(
            ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert child.popen.stdout is not None and child.popen.stdout.readline() == b"ready\n"
        stubborn, started = child.popen, time.monotonic()
        launcher.stop()
        assert stubborn.returncode == -9
        assert time.monotonic() - started < 5
        stubborn.stdout.close()


@dataclass
class Clock:
    """Manually advanced clock."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def server(folder: Path, engine: StubEngine, max_restarts: int = 2) -> Process:
    (folder / "server.log").write_text("out of memory\n")
    place = Placement("127.0.0.1", engine.port)
    return Process("server", (), folder / "server.log", {}, False, place, max_restarts)


async def up(supervisor: Supervisor) -> None:
    """Let the supervisor pass a health check of the stub engine, which runs on this event loop."""
    await asyncio.to_thread(supervisor.check)


async def test_server_restarts_with_doubling_delays_up_to_the_maximum(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = FakeLauncher()
    async with StubEngine() as engine:
        supervisor = Supervisor(launcher)
        supervisor.start(server(tmp_path, engine))
        await up(supervisor)
        for pause in (1.0, 2.0):
            launcher.ends["server"] = ProcessExit.of(-9)
            supervisor.check()
            started = len(launcher.started)
            clock.now += pause - 0.01
            supervisor.check()
            assert len(launcher.started) == started
            clock.now += 0.02
            supervisor.check()
            assert len(launcher.started) == started + 1
        launcher.ends["server"] = ProcessExit.of(-9)
        with pytest.raises(ProcessFailed, match=r"server was killed by SIGKILL(.|\n)*out of memory"):
            supervisor.check()
        assert supervisor.restarts == 2
    output = capsys.readouterr().out
    assert "out of memory" in output and "restarting in 2 s (restart 2 of 2 within 10 minutes)" in output


async def test_restarts_outside_the_window_do_not_count(tmp_path: Path, clock: Clock) -> None:
    launcher = FakeLauncher()
    async with StubEngine() as engine:
        supervisor = Supervisor(launcher)
        supervisor.start(server(tmp_path, engine, max_restarts=1))
        await up(supervisor)
        for _ in range(3):
            launcher.ends["server"] = ProcessExit.of(1)
            supervisor.check()
            clock.now += module.WINDOW + 1
            supervisor.check()
        assert supervisor.restarts == 3


async def test_server_that_was_never_up_is_not_restarted(tmp_path: Path, clock: Clock) -> None:
    launcher = FakeLauncher()
    supervisor = Supervisor(launcher)
    async with StubEngine() as engine:
        gone = server(tmp_path, engine)
    supervisor.start(gone)
    supervisor.check()
    launcher.ends["server"] = ProcessExit.of(1)
    with pytest.raises(ProcessFailed, match="server ended with exit code 1"):
        supervisor.check()


async def test_restart_waits_for_a_placement(tmp_path: Path, clock: Clock) -> None:
    launcher, places = FakeLauncher(), [None, None]
    async with StubEngine() as engine:
        process = server(tmp_path, engine)
        supervisor = Supervisor(launcher, lambda gone: places.pop() if places else process)
        supervisor.start(process)
        await up(supervisor)
        launcher.ends["server"] = ProcessExit.of(-9)
        supervisor.check()
        clock.now += 1.0
        for started in (1, 1, 2):
            supervisor.check()
            assert len(launcher.started) == started


def test_tail_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("\n".join(map(str, range(100))))
    assert tail(log, 2) == "  | 98\n  | 99"
    assert tail(tmp_path / "none") == "  | (nothing)"


def test_threads_are_set_in_the_environment() -> None:
    assert available_cores() >= 1
    assert environment(3)["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in environment(None)
