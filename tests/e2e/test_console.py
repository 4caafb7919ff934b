"""Failing trackers of a real run, and its dashboard on a terminal."""

import json
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from braidrl.monitors.record import read_record
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
FAILED = "tracker custom failed, training continues: RuntimeError: the tracker's server is on fire"


def test_no_tracker_stops_a_run(tiny_model_dir: Path, tmp_path: Path) -> None:
    """One tracker raises, one hangs, and one records its input. The run is interrupted and resumed."""
    launch = Launch(tmp_path, tiny_model_dir, site=SUPPORT)
    with launch.config.open("a") as file:
        file.write(TRACKERS)
    process = launch.start("--max-steps", "1000", "--checkpoint.interval", "1")
    try:
        wait_until(lambda: FAILED in launch.output.read_text(), "the notice")
        behind = len(launch.rows("trainer"))
        wait_until(lambda: len(launch.rows("trainer")) > behind + 1, "another two steps")
        process.terminate()
        assert process.wait(60) == 143
    finally:
        process.kill()
    output = launch.output.read_text()
    assert "tracker custom ended with exit code 1: RuntimeError: the tracker's server is on fire" in output
    assert "tracker custom_2 did not finish within 0.5 s of the end" in output
    done = launch.run.checkpoints()[-1]
    received = (launch.run.trackers / "custom_3" / "told.txt").read_text().splitlines()
    assert received[-1] == "closed interrupted"
    for step in range(1, done + 1):
        assert sum(line.startswith(f"{step} ") for line in received) == 2  # of orchestrator and trainer

    resumed = launch.finish("--max-steps", str(done + 1), "--resume", "--quiet")
    assert (
        "step " not in resumed.replace(f"after step {done}", "") and f"Finished {done + 1} steps" in resumed
    )
    received = (launch.run.trackers / "custom_3" / "told.txt").read_text().splitlines()
    assert received[-1] == "closed done"
    assert f"opened run after {done} with" in "\n".join(received)
    assert [(each.status, each.after) for each in read_record(launch.run)] == [
        ("interrupted", 0),
        ("done", done),
    ]


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
    assert "starting: loading models" in text
    assert "waits for the batch of step 1" in text and "serves v0" in text
    assert f"step {STEPS}/{STEPS}" in text and "groups without signal" in text and "reverse-text" in text
    assert json.loads(launch.run.live.read_text())["most_episodes"] > 0
