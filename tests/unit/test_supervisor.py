"""Starting and stopping processes together, on commands that end at once or never."""

import subprocess
import time
from pathlib import Path

import pytest

from braidrl.entrypoints.supervisor import ProcessFailed, Supervisor
from braidrl.utils.log import tail
from braidrl.utils.threads import available_cores, environment


def wait_for_end(supervisor: Supervisor, name: str) -> None:
    supervisor.children[name].popen.wait(30)


def test_a_good_end_is_noticed(tmp_path: Path) -> None:
    with Supervisor(5.0) as supervisor:
        supervisor.start("helper", ["--version"], tmp_path / "helper.log", {})
        wait_for_end(supervisor, "helper")
        supervisor.check()
        assert supervisor.finished()
    assert "braid " in (tmp_path / "helper.log").read_text()


def test_a_bad_end_shows_code_and_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "helper.log"
    with Supervisor(5.0) as supervisor:
        supervisor.start("helper", ["nonsense"], log, {})
        wait_for_end(supervisor, "helper")
        with pytest.raises(
            ProcessFailed, match=r"helper ended with exit code 2(.|\n)*unknown command 'nonsense'"
        ):
            supervisor.check()


def test_a_server_that_ends_has_failed(tmp_path: Path) -> None:
    with Supervisor(5.0) as supervisor:
        supervisor.start("server", ["--version"], tmp_path / "server.log", {}, ends=False)
        wait_for_end(supervisor, "server")
        with pytest.raises(ProcessFailed, match="server ended with exit code 0"):
            supervisor.check()


def test_a_process_that_ignores_the_request_to_stop_is_killed(tmp_path: Path) -> None:
    with Supervisor(0.5) as supervisor:
        supervisor.start("helper", ["--version"], tmp_path / "helper.log", {})
        child = supervisor.children["helper"]
        child.popen.wait(30)
        child.popen = subprocess.Popen(
            ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert child.popen.stdout is not None and child.popen.stdout.readline() == b"ready\n"
        stubborn, started = child.popen, time.monotonic()
        supervisor.stop()
        assert stubborn.returncode == -9
        assert time.monotonic() - started < 5
        stubborn.stdout.close()


def test_tail_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("\n".join(map(str, range(100))))
    assert tail(log, 2) == "  | 98\n  | 99"


def test_cores_are_shared_by_environment() -> None:
    assert available_cores() >= 1
    assert environment(3)["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in environment(None)
