"""Several processes per kind on one machine: two trainer ranks, and two inference servers that are killed."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.accounts import check_accounts
from tests.support.runs import Launch, command_lines, wait_until

pytestmark = pytest.mark.slow

STEPS = 20
START = 240.0
"""Maximum time until the first step in seconds: five processes start on few cores."""
REPLICAS = ("--inference.replicas", "2")
RANKS = ("--trainer.parallel.processes", "2")


def server_ids(launch: Launch) -> list[int]:
    return [pid for pid, arguments in command_lines(launch).items() if arguments[0] == "inference"]


def reach(step: int, launch: Launch, launcher: subprocess.Popen) -> None:
    wait_until(
        lambda: len(launch.rows("trainer")) >= step or launcher.poll() is not None,
        f"step {step}",
        START,
    )
    assert launcher.poll() is None, launch.report()


def check_whole(launch: Launch, steps: int) -> None:
    """Assert that every step was taken once and every dispatched episode is accounted for."""
    for process in ("trainer", "orchestrator"):
        assert [row["step"] for row in launch.rows(process)] == list(range(1, steps + 1))
    assert check_accounts(launch.run)["trained"] >= steps * 16 / 4


def test_two_ranks_and_two_servers_that_are_killed(tmp_path: Path, tiny_model_dir: Path) -> None:
    """The run continues without one server. Without both, it waits until one has restarted. No episode is lost."""
    launch = Launch(tmp_path, tiny_model_dir)
    launcher = launch.start(*REPLICAS, *RANKS, "--max_steps", str(STEPS))
    reach(1, launch, launcher)
    servers = server_ids(launch)
    assert len(servers) == 2, launch.report()
    os.kill(servers[0], signal.SIGKILL)
    reach(len(launch.rows("trainer")) + 2, launch, launcher)
    os.kill(servers[1], signal.SIGKILL)

    assert launcher.wait(180) == 0, launch.report()
    logs = {path.stem for path in launch.run.logs.iterdir()}
    assert logs == {"inference_0", "inference_1", "orchestrator", "trainer", "trainer_rank1"}
    output = launch.output.read_text()
    for server in ("inference_0", "inference_1"):
        assert f"{server} was killed by SIGKILL" in output
    assert output.count("restart 1 of 3 within 10 minutes") == 2
    assert "2 processes" in launch.run.log("trainer").read_text()
    starts = [launch.run.log(f"inference_{index}").read_text().count("inference ready") for index in (0, 1)]
    assert sum(starts) >= 3
    check_whole(launch, STEPS)
    assert command_lines(launch) == {}


def test_the_end_of_a_rank_ends_the_run_with_its_last_lines(tmp_path: Path, tiny_model_dir: Path) -> None:
    launch = Launch(tmp_path, tiny_model_dir)
    launcher = launch.start(*RANKS, "--max_steps", "1000")
    reach(1, launch, launcher)
    processes = command_lines(launch)
    ranks = sorted(pid for pid, arguments in processes.items() if arguments[0] == "trainer")
    environments = {pid: Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in ranks}
    last = next(pid for pid in ranks if b"RANK=1" in environments[pid])
    os.kill(last, signal.SIGKILL)
    assert launcher.wait(30) == 1
    assert "trainer_rank1 was killed by SIGKILL; last lines of" in launch.output.read_text()
    assert command_lines(launch) == {}
