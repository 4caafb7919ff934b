"""What is seen of real runs: their records, what becomes of trackers that fail, and the dashboard on a terminal."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from braidrl.monitors.live import read_live
from braidrl.monitors.record import outcome, read_record
from tests.support.paths import SUPPORT
from tests.support.runs import Launch, wait_until

pytestmark = pytest.mark.slow

STEPS = 3
TRACKERS = """
[[tracker]]
type = "custom"
import_path = "tracker_examples:Raises"
[[tracker]]
type = "custom"
import_path = "tracker_examples:Hangs"
close_timeout = 0.5
[[tracker]]
type = "custom"
import_path = "tracker_examples:Writes"
"""


def test_a_run_is_recorded_and_no_tracker_stops_it(tiny_model_dir: Path, tmp_path: Path) -> None:
    launch = Launch(tmp_path, tiny_model_dir, site=SUPPORT)
    with launch.config.open("a") as file:
        file.write(TRACKERS)
    output = launch.finish("--max-steps", str(STEPS))
    assert f"step {STEPS}/{STEPS}" in output and f"done: {STEPS} steps" in output
    failed = "RuntimeError: the tracker's server is on fire"  # before the run has ended, or on a busy machine after it
    assert f"tracker custom ended with exit code 1: {failed}" in output
    assert "tracker custom_2 was not ready 0.5 s after the end" in output

    told = (launch.run.trackers / "custom_3" / "told.txt").read_text().splitlines()
    assert told[-1] == "closed done"
    for step in range(1, STEPS + 1):
        assert sum(line.startswith(f"{step} ") for line in told) == 2  # of orchestrator and trainer
    (record,) = read_record(launch.run)
    assert record.status == "done" and "--max-steps" in record.command
    live = read_live(launch.run.live)
    assert live is not None and 1 <= live.step <= STEPS

    resumed = launch.finish("--max-steps", str(STEPS + 1), "--resume", "--quiet")
    assert "step " not in resumed.replace(f"after step {STEPS}", "") and f"done: {STEPS + 1} steps" in resumed
    told = (launch.run.trackers / "custom_3" / "told.txt").read_text().splitlines()
    assert f"opened run after {STEPS} with" in "\n".join(told)
    assert sum(line.startswith(f"{STEPS} ") for line in told) == 2
    assert [(each.status, each.after) for each in read_record(launch.run)] == [("done", 0), ("done", STEPS)]


def test_a_tracker_that_fails_is_told_of_while_training_goes_on(tiny_model_dir: Path, tmp_path: Path) -> None:
    launch = Launch(tmp_path, tiny_model_dir, site=SUPPORT)
    with launch.config.open("a") as file:
        file.write('[[tracker]]\ntype = "custom"\nimport_path = "tracker_examples:Raises"\n')
    process = launch.start("--max-steps", "1000")
    try:
        notice = "tracker custom failed, training goes on: RuntimeError: the tracker's server is on fire"
        wait_until(lambda: notice in launch.output.read_text(), "the notice")
        told = len(launch.rows("trainer"))
        wait_until(lambda: len(launch.rows("trainer")) > told, "another step")
        process.terminate()
        assert process.wait(60) == 143
    finally:
        process.kill()


def test_runs_say_which_process_failed_and_which_launcher_was_killed(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    launch = Launch(tmp_path, tiny_model_dir)
    process = launch.start("--max-steps", "1000")
    try:
        wait_until(lambda: len(launch.rows("trainer")) >= 1, "the first step")
        assert outcome(launch.run).status == "running"
        trainer = next(
            int(pid)
            for pid in children_of(process.pid)
            if b"\0trainer\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        os.kill(trainer, signal.SIGKILL)
        assert process.wait(60) == 1
        seen = outcome(launch.run)
        assert seen.status == "failed" and seen.error == "trainer was killed by SIGKILL"

        process = launch.start("--max-steps", "1000", "--resume")
        wait_until(lambda: len(read_record(launch.run)) == 2, "the second launch")
        process.kill()
        process.wait(60)
        assert outcome(launch.run).status == "killed"
    finally:
        process.kill()


def children_of(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [child for task in tasks for child in task.read_text().split()]


def test_a_terminal_gets_a_dashboard(tiny_model_dir: Path, tmp_path: Path) -> None:
    launch = Launch(tmp_path, tiny_model_dir)
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "braidrl.cli", "rl", "@", str(launch.config), "--max-steps", str(STEPS)]
    command += ["--output_dir", str(launch.run.root)]
    environment = {**os.environ, "COLUMNS": "160", "LINES": "50", "TERM": "xterm", "NO_COLOR": "1"}
    process = subprocess.Popen(command, stdout=end, stderr=end, env=environment | {"OMP_NUM_THREADS": "1"})
    os.close(end)
    shown = bytearray()

    def read() -> None:
        try:
            while data := os.read(terminal, 4096):
                shown.extend(data)
        except OSError:  # the run has ended
            pass

    reader = threading.Thread(target=read)
    reader.start()
    assert process.wait(180) == 0, shown.decode()
    reader.join(10)
    os.close(terminal)
    text = shown.decode()
    assert "starting: models are loaded" in text
    assert "waits for the batch of step 1" in text and "serves v0" in text
    assert f"step {STEPS}/{STEPS}" in text and "groups without signal" in text and "reverse-text" in text
    assert json.loads(launch.run.live.read_text())["most_episodes"] > 0
