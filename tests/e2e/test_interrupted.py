"""A run that loses a process or is interrupted ends promptly with an error; `--resume` continues it."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from braidrl.monitors.record import outcome, read_record
from tests.support.runs import Launch, process_ids, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# A checkpoint at each step, and no restarts of servers.
FLAGS = ("--checkpoint.interval", "1", "--inference.max_restarts", "0")


def start(launch: Launch, *flags: str):
    """Start the run and wait until it has completed another step."""
    before = len(launch.rows("trainer"))
    launcher = launch.start("--max_steps", "1000", *FLAGS, *flags)
    wait_until(lambda: len(launch.rows("trainer")) > before, f"another step\n{launch.report()}")
    assert outcome(launch.run).status == "running"
    return launcher


def check_killed(launch: Launch, launcher, victim: str, seconds: float) -> None:
    """Kill one process. The run ends within 20 s and prints the last line of its log."""
    time.sleep(seconds)
    os.kill(process_ids(launch)[victim], signal.SIGKILL)
    assert launcher.wait(20) == 1
    output = launch.output.read_text()
    assert f"{victim} was killed by SIGKILL" in output
    assert launch.run.log(victim).read_text().splitlines()[-1] in output
    assert process_ids(launch) == {}
    seen = outcome(launch.run)
    assert seen.status == "failed" and seen.error == f"{victim} was killed by SIGKILL"


BROKEN = """
import verifiers.v1 as vf

__all__ = ["BrokenTaskset"]


class BrokenTaskset(vf.Taskset[vf.Task[vf.TaskData], vf.TasksetConfig]):
    def load(self):
        raise FileNotFoundError("/data/tasks.parquet")
"""


def test_a_process_that_fails_ends_the_run_with_its_reason(tmp_path: Path, tiny_model_dir: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "broken_tasks.py").write_text(BROKEN)
    launch = Launch(tmp_path, tiny_model_dir, site=tmp_path / "site")
    launch.config.write_text(launch.config.read_text().replace("reverse-text", "broken-tasks"))
    assert launch.start("--max_steps", "1").wait(60) == 1
    output = launch.output.read_text()
    assert "orchestrator ended with exit code 1; last lines" in output
    assert "taskset 'broken-tasks' raised after 0 tasks: FileNotFoundError: /data/tasks.parquet" in output
    assert process_ids(launch) == {}


def test_whatever_ends_a_run_resume_continues_it(tmp_path: Path, tiny_model_dir: Path) -> None:
    launch, rng = Launch(tmp_path, tiny_model_dir), random.Random(0)
    resume: list[str] = []
    for victim in ("inference", "orchestrator", "trainer"):
        check_killed(launch, start(launch, *resume), victim, rng.uniform(0.0, 1.0))
        resume = ["--resume"]

    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        launcher = start(launch, *resume)
        launcher.send_signal(number)
        assert launcher.wait(20) == code
        assert process_ids(launch) == {}
        assert outcome(launch.run).status == "interrupted"

    launcher = start(launch, *resume)
    launcher.kill()
    launcher.wait()
    wait_until(lambda: process_ids(launch) == {}, "the processes to end with their launcher", 20)
    assert outcome(launch.run).status == "killed"

    steps = launch.run.checkpoints()[-1] + 1
    launch.finish("--max_steps", str(steps), *FLAGS, *resume)
    for process in ("trainer", "orchestrator"):
        assert [row["step"] for row in launch.rows(process)] == list(range(1, steps + 1))
    assert launch.run.checkpoints()[-1] == steps
    assert outcome(launch.run).status == "done"
    assert len(read_record(launch.run)) == 7
