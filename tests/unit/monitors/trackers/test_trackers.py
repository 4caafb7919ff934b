"""Experiment trackers: metrics they receive, and isolation of the run from their failures."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tracker_examples
from tracked_runs import EVAL, GLANCES, ORCHESTRATOR, TRAINER, series_in_tensorboard, small_run, write_step
from tracker_examples import told, wait_for

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.trackers import (
    CustomTrackerConfig,
    TensorBoardTrackerConfig,
    WandbTrackerConfig,
    labels,
)
from braidrl.entrypoints import track
from braidrl.launch.tracker_processes import check_trackers, tracking
from braidrl.monitors.trackers.overview import named
from braidrl.monitors.trackers.send import tell, tracked
from braidrl.utils.run_folder import RunFolder
from tests.support.paths import DOCS

# -- names


def test_the_overview_holds_reward_staleness_kl_loss_and_speed() -> None:
    rows = {"trainer": TRAINER, "orchestrator": ORCHESTRATOR, "eval": EVAL}
    few: dict[str, float] = {}
    for process, row in rows.items():
        few |= named(process, {"step": 1, **row}, overview_alone=True)
    assert few == GLANCES
    every = named("orchestrator", {"step": 1, **ORCHESTRATOR}, overview_alone=False)
    assert every["orchestrator/reward/std"] == 0.1 and "step" not in every
    assert sorted(every)[0].startswith("at_a_glance/")  # sections are sorted by name
    assert named("trainer", {"step": 1, "loss": None}, overview_alone=False) == {}


def test_trackers_of_one_type_have_labels_of_their_own() -> None:
    trackers = [TensorBoardTrackerConfig(), WandbTrackerConfig(), TensorBoardTrackerConfig()]
    assert labels(trackers) == ["tensorboard", "wandb", "tensorboard_2"]


# -- during a run


def custom(name: str, **options: float) -> CustomTrackerConfig:
    return CustomTrackerConfig(import_path=f"{tracker_examples.__name__}:{name}", **options)


@pytest.fixture
def examples_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(Path(tracker_examples.__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))


@pytest.mark.usefixtures("examples_are_found")
def test_a_tracker_is_told_while_the_run_runs_and_how_it_ended(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    folder = run.trackers / "custom"
    with tracking([custom("Writes", metrics="overview")], run):
        wait_for(folder, "3 {'at_a_glance/eval/held'")
        write_step(run, 4)
        wait_for(folder, "4 {")
    lines = told(folder)
    assert lines[0] == "opened run after 0 with ['max_steps', 'model', 'trainer']"
    assert lines[-1] == "closed done"
    with pytest.raises(KeyboardInterrupt), tracking([custom("Writes")], run):
        raise KeyboardInterrupt
    assert told(folder)[-1] == "closed interrupted"


@pytest.mark.usefixtures("examples_are_found")
def test_a_tracker_that_raises_is_told_of_and_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small_run(tmp_path / "run")
    with tracking([custom("Raises")], run):
        deadline = time.monotonic() + 200
        while not run.notices.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        write_step(run, 4)
    notice = json.loads(run.notices.read_text())
    assert notice == {"tracker": "custom", "message": "RuntimeError: the tracker's server is on fire"}
    warning = capsys.readouterr().err
    failed = "RuntimeError: the tracker's server is on fire"
    assert f"tracker custom ended with exit code 1: {failed}" in warning and "not affected" in warning
    assert "Traceback" in run.log("tracker_custom").read_text()


@pytest.mark.usefixtures("examples_are_found")
@pytest.mark.parametrize("kind", ["Hangs", "HangsAtTheEnd", "BurnsTheProcessor"])
def test_the_end_of_a_run_waits_for_a_tracker_that_hangs_no_longer_than_it_may(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small_run(tmp_path / "run")
    with tracking([custom(kind, close_timeout=0.5)], run):
        wait_for(run.trackers / "custom", "1 {")
        ended = time.monotonic()
    assert time.monotonic() - ended < 5.0
    assert "did not finish within 0.5 s of the end (tracker.close_timeout)" in capsys.readouterr().err


@pytest.mark.usefixtures("examples_are_found")
def test_a_tracker_does_not_outlive_a_launcher_that_was_killed(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "import tracker_examples\n"
        "from braidrl.configs.trackers import CustomTrackerConfig\n"
        "from braidrl.launch.tracker_processes import tracking\n"
        "from braidrl.utils.run_folder import RunFolder\n"
        "config = CustomTrackerConfig(import_path='tracker_examples:Writes')\n"
        "run = RunFolder(Path(sys.argv[1]))\n"
        "with tracking([config], run):\n"
        "    tracker_examples.wait_for(run.trackers / 'custom', '3 {')\n"
        "    os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(run.root)], timeout=120).returncode == 9
    wait_for(run.trackers / "custom", "closed killed")


@pytest.mark.usefixtures("examples_are_found")
def test_a_tracker_at_work_has_the_least_priority(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    with tracking([custom("BurnsTheProcessor", close_timeout=0.1)], run):
        wait_for(run.trackers / "custom", "1 {")
        (process,) = children()
        tasks = [int(path.name) for path in Path(f"/proc/{process}/task").iterdir()]
        assert {os.getpriority(os.PRIO_PROCESS, task) for task in tasks} == {track.LEAST}


def children() -> list[int]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [
        int(each) for each in listed.split() if b"--launched" in Path(f"/proc/{each}/cmdline").read_bytes()
    ]


def test_a_run_without_trackers_starts_nothing(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    with tracking([], run):
        pass
    assert not run.trackers.exists()


# -- the command, and errors


def test_a_finished_run_is_sent_by_hand(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    args = [str(run.root), "--tracker.type", "tensorboard", "--tracker.folder", str(tmp_path / "events")]
    assert track.main(args) == 0
    assert series_in_tensorboard(tmp_path / "events")["at_a_glance/loss"][-1] == (3, -0.25)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{tmp}", "--tracker.type", "tensorboard"], "is not a run folder"),
        (
            ["{run}", "--tracker.type", "custom", "--tracker.import_path", "no.such:Thing"],
            "cannot be imported",
        ),
    ],
)
def test_what_cannot_be_tracked_is_one_clear_error(args: list[str], message: str, tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    with pytest.raises(ConfigError, match=message):
        track.main([arg.format(tmp=tmp_path, run=run.root) for arg in args])


def test_a_tracker_that_fails_by_hand_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small_run(tmp_path / "run")
    import_path = f"{tracker_examples.__name__}:Raises"
    assert track.main([str(run.root), "--tracker.type", "custom", "--tracker.import_path", import_path]) == 1
    seen = capsys.readouterr().err
    assert seen == "braid track: error: custom failed: RuntimeError: the tracker's server is on fire\n"


def test_a_library_that_is_missing_is_found_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    trackers = [TensorBoardTrackerConfig(), custom("Writes")]
    check_trackers(trackers)
    monkeypatch.setattr("braidrl.launch.tracker_processes.find_spec", {"wandb": None}.get)
    with pytest.raises(ConfigError, match=r"tracker\[0\].type: tensorboard is not installed: pip install"):
        check_trackers(trackers)


def test_the_tracker_of_the_document_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / "trackers.md").read_text()
    scope: dict[str, Any] = {}
    exec(text.partition("```python\n")[2].partition("```")[0], scope)
    run = small_run(tmp_path / "run")
    config = CustomTrackerConfig(import_path="my_trackers:Prints", options={"prefix": "mine "})
    tell(run, config, scope["Prints"](config, tracked(run, "custom", False)), 2, lambda seconds: "done")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.startswith("mine  3 {") for line in lines)
