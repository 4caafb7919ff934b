"""A process that is killed ends the run, quickly and loudly; `--resume` finishes it."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from braidrl.monitors.record import outcome
from tests.support.runs import Launch, command_lines, wait_until

pytestmark = pytest.mark.slow

STEPS = 6


def process_ids(launch: Launch) -> dict[str, int]:
    """Running processes of a run, by name."""
    return {arguments[0]: pid for pid, arguments in command_lines(launch).items()}


NO_RESTARTS = ("--inference.max_restarts", "0")


@pytest.mark.parametrize(("victim", "seed"), [("inference", 0), ("orchestrator", 1), ("trainer", 2)])
def test_killed_process_ends_the_run_and_resume_finishes_it(
    tmp_path: Path, tiny_model_dir: Path, victim: str, seed: int
) -> None:
    launch = Launch(tmp_path, tiny_model_dir)
    flags = ("--max_steps", str(STEPS), "--checkpoint.interval", "1", *NO_RESTARTS)
    launcher = launch.start(*flags)
    wait_until(lambda: len(launch.rows("trainer")) >= 1, f"the first step\n{launch.report()}")
    time.sleep(random.Random(seed).uniform(0.0, 1.0))
    os.kill(process_ids(launch)[victim], signal.SIGKILL)
    killed = time.monotonic()

    assert launcher.wait(20) == 1
    assert time.monotonic() - killed < 20
    output = launch.output.read_text()
    assert f"{victim} was killed by SIGKILL" in output
    last_line = launch.run.log(victim).read_text().splitlines()[-1]
    assert last_line in output
    assert process_ids(launch) == {}

    launch.finish(*flags, "--resume")
    assert [row["step"] for row in launch.rows("trainer")] == list(range(1, STEPS + 1))
    assert [row["step"] for row in launch.rows("orchestrator")] == list(range(1, STEPS + 1))
    assert launch.run.checkpoints()[-1] == STEPS


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_stops_everything_and_resume_finishes_it(
    tmp_path: Path, tiny_model_dir: Path, number: signal.Signals, code: int
) -> None:
    launch = Launch(tmp_path, tiny_model_dir)
    launcher = launch.start("--max_steps", "1000", "--checkpoint.interval", "1")
    wait_until(lambda: launch.run.checkpoints() != [], f"the first checkpoint\n{launch.report()}")
    launcher.send_signal(number)
    assert launcher.wait(20) == code
    assert process_ids(launch) == {}
    assert outcome(launch.run).status == "interrupted"

    steps = launch.run.checkpoints()[-1] + 1
    launch.finish("--max_steps", str(steps), "--checkpoint.interval", "1", "--resume")
    assert [row["step"] for row in launch.rows("trainer")] == list(range(1, steps + 1))
    assert outcome(launch.run).status == "done"


def test_killed_launcher_leaves_no_process_behind(tmp_path: Path, tiny_model_dir: Path) -> None:
    launch = Launch(tmp_path, tiny_model_dir)
    launcher = launch.start("--max_steps", "1000")
    wait_until(lambda: len(launch.rows("trainer")) >= 1, f"the first step\n{launch.report()}")
    launcher.kill()
    launcher.wait()
    wait_until(lambda: process_ids(launch) == {}, "the processes to end with their launcher", 20)
