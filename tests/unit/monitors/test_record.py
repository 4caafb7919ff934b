"""Record of a run: launches and outcome, including a launcher that was killed."""

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from braidrl.monitors import surroundings
from braidrl.monitors.live import LiveState, read_live, write_live
from braidrl.monitors.record import SILENT_SECONDS, Launch, RunRecord, outcome, read_record, recorded
from braidrl.utils.process import Terminated
from braidrl.utils.run_folder import RunFolder

SLEEPER = """
import sys, time
from pathlib import Path
from braidrl.monitors.record import recorded
from braidrl.utils.run_folder import RunFolder
from braidrl.utils.process import Terminated
with recorded(RunFolder(Path(sys.argv[1]))):
    print("recorded", flush=True)
    time.sleep(600)
"""


def live(**changes: float) -> LiveState:
    fields = {
        "time": time.time(),
        "step": 1,
        "version": 0,
        "idle": 0.0,
        "episodes": 0,
        "most_episodes": 8,
        "buffered": 0,
        "calls": 0,
        "calls_waiting": 0,
        "evaluating": 0,
        "waits": "dispatching",
    }
    return LiveState(**(fields | changes))


def test_a_run_is_recorded_while_it_runs_and_when_it_is_done(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    with recorded(run):
        (launch,) = read_record(run)
        assert (launch.status, launch.ended, launch.after) == ("running", None, 0)
        assert (launch.pid, launch.host, launch.folder) == (os.getpid(), platform.node(), str(Path.cwd()))
        assert launch.surroundings.python == platform.python_version() and launch.surroundings.cores >= 1
        assert outcome(run).status == "running"
    (launch,) = read_record(run)
    assert launch.status == "done" and launch.ended is not None and launch.ended >= launch.started
    assert outcome(run).status == "done"
    assert f"pydantic=={surroundings.version('pydantic')}\n" in run.packages.read_text()


def test_every_launch_of_a_run_stays_in_its_record(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    error = RuntimeError("trainer was killed by SIGKILL; last lines of trainer.log:\n  | boom")
    with pytest.raises(RuntimeError), recorded(run):
        raise error
    assert outcome(run).error == "trainer was killed by SIGKILL"
    with pytest.raises(KeyboardInterrupt), recorded(run, after=3):
        raise KeyboardInterrupt
    first, second = read_record(run)
    assert (first.status, second.status, second.after, second.error) == ("failed", "interrupted", 3, None)


def test_a_launcher_that_was_killed_is_found_out(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    command = [sys.executable, "-c", SLEEPER, str(run.root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"recorded\n"
        assert outcome(run).status == "running"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    seen = outcome(run)
    assert seen.status == "killed" and seen.ended == pytest.approx(run.record.stat().st_mtime)


def test_sigterm_interrupts_and_the_record_says_so(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(run.root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"recorded\n"
    process.terminate()
    _, errors = process.communicate(timeout=30)
    assert errors.endswith(b"braidrl.utils.process.Terminated\n"), errors
    assert outcome(run).status == "interrupted"


def test_while_a_run_ends_sigterm_does_not_disturb_it(tmp_path: Path) -> None:
    """Only the first SIGTERM interrupts; the previous handler is restored afterwards."""
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    run = RunFolder(tmp_path)
    try:
        with pytest.raises(Terminated), recorded(run):
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
        assert received == [] and outcome(run).status == "interrupted"
        signal.raise_signal(signal.SIGTERM)
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_run_may_be_recorded_in_any_thread(tmp_path: Path) -> None:
    """Threads other than the main one cannot handle signals."""
    run = RunFolder(tmp_path)

    def record() -> None:
        with recorded(run):
            pass

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=record)
    thread.start()
    thread.join(60)
    assert outcome(run).status == "done" and signal.getsignal(signal.SIGTERM) == before


def rewritten(run: RunFolder, **changes: object) -> Launch:
    """Write the record of a running launch with some fields changed."""
    with recorded(run):
        (launch,) = read_record(run)
    for name, value in changes.items():
        setattr(launch, name, value)
    run.record.write_bytes(msgspec.json.encode(RunRecord([launch])))
    return launch


def test_another_process_of_the_same_number_is_not_the_launcher(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    launch = rewritten(run, born=1)
    assert launch.pid == os.getpid()
    assert outcome(run).status == "killed"


def test_elsewhere_the_heartbeat_decides(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    rewritten(run, host="another")
    old = time.time() - 2 * SILENT_SECONDS
    os.utime(run.record, (old, old))
    assert outcome(run).status == "killed"
    write_live(run.live, live())
    assert outcome(run).status == "running"
    write_live(run.live, live(time=old))
    assert outcome(run).status == "killed"


def test_a_folder_without_record_is_unknown_and_a_broken_record_is_an_error(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert outcome(run).status == "unknown"
    run.record.write_text('{"launches": 3}')
    with pytest.raises(ValueError, match="is not a run record"):
        outcome(run)


def test_the_state_of_the_code_is_recorded_and_no_secret_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*args: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], check=True, cwd=tmp_path)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRAID_COLOUR", "blue")
    monkeypatch.setenv("BRAID_API_KEY", "hush")
    git("init", "-q", "-b", "main")
    (tmp_path / "file.txt").write_text("1")
    git("add", "file.txt")
    git("commit", "-q", "-m", "first")
    (tmp_path / "untracked.txt").write_text("1")
    here = surroundings.Repository.found()[0]
    assert Path(here.path).samefile(tmp_path) and here.branch == "main" and len(here.commit) == 40
    assert not here.dirty
    (tmp_path / "file.txt").write_text("2")
    assert surroundings.Repository.found()[0].dirty
    variables = surroundings.Surroundings.found().variables
    assert variables["BRAID_COLOUR"] == "blue" and "BRAID_API_KEY" not in variables


def test_a_live_state_is_read_back_and_tells_its_age(tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    assert read_live(path) is None
    state = live(episodes=3)
    write_live(path, state)
    assert read_live(path) == state and state.fresh and not live(time=time.time() - 60).fresh
    path.write_text("{")
    assert read_live(path) is None
