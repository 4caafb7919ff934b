"""Experiment trackers: what they are told, against their real libraries, and that none can stop or slow a run."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tracker_examples
from tracker_examples import told, wait_for

from braidrl.configs.errors import ConfigError
from braidrl.configs.trackers import (
    CustomTrackerConfig,
    MLflowTrackerConfig,
    TensorBoardTrackerConfig,
    TrackerConfig,
    WandbTrackerConfig,
    labels,
)
from braidrl.entrypoints import track
from braidrl.entrypoints.tracking import check_trackers, tracking
from braidrl.monitors.metrics import MetricsWriter
from braidrl.monitors.record import recorded
from braidrl.monitors.trackers import tracker_class
from braidrl.monitors.trackers.overview import named
from braidrl.monitors.trackers.tell import tell, tracked
from braidrl.utils.run_folder import RunFolder

STEPS = 3
TRAINER = {"loss": -0.25, "mismatch_kl": 0.001, "tokens_per_second": 900.0, "grad_norm": 1.5, "lr": 1e-5}
ORCHESTRATOR = {
    "reward/mean": 0.5,
    "reward/std": 0.1,
    "reward/words/mean": 0.75,
    "reward/words/std": 0.1,
    "staleness/mean": 0.5,
    "zero_signal": 0.25,
    "tokens_per_second": 700.0,
}
EVAL = {"eval/held/reward/mean": 0.625, "eval/held/reward/ci95": 0.1, "eval/held/pass@4": 0.875}
GLANCES = {
    "at_a_glance/reward": 0.5,
    "at_a_glance/reward/words": 0.75,
    "at_a_glance/staleness": 0.5,
    "at_a_glance/groups_without_signal": 0.25,
    "at_a_glance/tokens_per_second/sampler": 700.0,
    "at_a_glance/loss": -0.25,
    "at_a_glance/kl": 0.001,
    "at_a_glance/grad_norm": 1.5,
    "at_a_glance/tokens_per_second/trainer": 900.0,
    "at_a_glance/eval/held": 0.625,
}


def write_step(run: RunFolder, step: int) -> None:
    MetricsWriter(run.metrics("orchestrator")).log(step, ORCHESTRATOR)
    MetricsWriter(run.metrics("trainer")).log(step, TRAINER)


def small_run(folder: Path) -> RunFolder:
    """A run of three steps and an evaluation, with a config."""
    run = RunFolder(folder)
    run.configs.mkdir(parents=True)
    (run.configs / "rl.toml").write_text('max_steps = 3\n[trainer.optim]\nlr = 1e-5\n[model]\npath = "m"\n')
    for step in range(1, STEPS + 1):
        write_step(run, step)
    MetricsWriter(run.metrics("eval")).log(3, EVAL)
    return run


def tell_all(run: RunFolder, config: TrackerConfig, status: str = "done", continues: bool = False) -> None:
    """Tell the tracker of `config` all that lies in `run`."""
    kept = tracked(run, config.type, continues)
    tell(run, config, tracker_class(config)(config, kept), kept.after, lambda seconds: status)


def series_in_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in tags}


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


# -- the real libraries


def test_tensorboard_reads_what_was_told(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    tell_all(run, TensorBoardTrackerConfig())
    series = series_in_tensorboard(run.trackers / "tensorboard")
    for name, value in GLANCES.items():
        steps = [3] if "/eval/" in name else [1, 2, 3]
        assert series[name] == [(step, pytest.approx(value)) for step in steps], name
    assert series["trainer/lr"] == [(step, pytest.approx(1e-5)) for step in (1, 2, 3)]
    assert series["eval/held/pass@4"] == [(3, 0.875)]


def test_a_resumed_run_replaces_the_steps_that_it_takes_again(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    config = TensorBoardTrackerConfig(metrics="overview")
    with recorded(run):
        tell_all(run, config, continues=True)
    with recorded(run, after=2):
        assert tracked(run, "tensorboard", continues=True).after == 2
        for process in ("trainer", "orchestrator", "eval"):
            MetricsWriter(run.metrics(process)).truncate_after(2)
        MetricsWriter(run.metrics("trainer")).log(3, {"loss": 7.0})
        tell_all(run, config, continues=True)
    series = series_in_tensorboard(run.trackers / "tensorboard")
    assert series["at_a_glance/loss"] == [(1, -0.25), (2, -0.25), (3, 7.0)]


def records_of(path: Path) -> Iterator[Any]:
    """The records of an offline run of Weights & Biases: a LevelDB log (blocks of 32 KiB; each piece has 4 bytes of
    checksum, 2 of length, and one that says whether it is whole, first, middle or last) of protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, pieces = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 0x8000 - at % 0x8000 < 7:  # what is left of a block holds no head
            at += 0x8000 - at % 0x8000
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        pieces += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(pieces)
            pieces = b""


def test_weights_and_biases_keeps_a_run_offline(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    tell_all(run, WandbTrackerConfig(mode="offline", project="p", name="mine", tags=["t"]))
    (path,) = (run.trackers / "wandb").glob("wandb/offline-run-*/*.wandb")
    records = list(records_of(path))
    heads = [record.run for record in records if record.HasField("run")]
    assert (heads[0].project, heads[0].display_name, list(heads[0].tags)) == ("p", "mine", ["t"])
    rows = [
        {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    for name, value in GLANCES.items():
        steps = [row["step"] for row in rows if row.get(name) == value]
        assert steps == ([3] if "/eval/" in name else [1, 2, 3]), name
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [0]


def test_mlflow_keeps_a_run_in_files_and_goes_on_with_it(tmp_path: Path) -> None:
    from braidrl.monitors.trackers.mlflow import MlflowClient  # sets what files need

    run = small_run(tmp_path / "run")
    config = MLflowTrackerConfig(experiment="e")
    with recorded(run):
        tell_all(run, config, "failed", continues=True)
    with recorded(run, after=3):
        write_step(run, 4)
        tell_all(run, config, continues=True)
    client = MlflowClient(tracking_uri=(run.trackers / "mlflow" / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("e")
    (kept,) = client.search_runs([experiment.experiment_id])
    assert kept.info.status == "FINISHED" and kept.info.run_name == "run"
    assert kept.data.params["trainer.optim.lr"] == "1e-05" and kept.data.params["model.path"] == "m"
    for name, value in GLANCES.items():
        points = [
            (point.step, point.value) for point in client.get_metric_history(kept.info.run_id, dotted(name))
        ]
        assert points == [(step, value) for step in ([3] if "/eval/" in name else [1, 2, 3, 4])], name
    assert kept.data.metrics["eval/held.pass_at_4"] == 0.875


def dotted(name: str) -> str:
    """How MLflow keeps a name."""
    section, _, rest = name.partition("/")
    return f"{section}/{rest.replace('/', '.')}"


# -- beside a run


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
    assert "tracker custom ended with exit code 1; the run itself is not affected" in warning
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
    assert "was not ready 0.5 s after the end (tracker.close_timeout)" in capsys.readouterr().err


@pytest.mark.usefixtures("examples_are_found")
def test_a_tracker_does_not_outlive_a_launcher_that_was_killed(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "import tracker_examples\n"
        "from braidrl.configs.trackers import CustomTrackerConfig\n"
        "from braidrl.entrypoints.tracking import tracking\n"
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
        (["{tmp}", "--tracker.type", "tensorboard"], "is no run folder"),
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
    monkeypatch.setattr("braidrl.entrypoints.tracking.find_spec", {"wandb": None}.get)
    with pytest.raises(ConfigError, match=r"tracker\[0\].type: tensorboard is not installed: pip install"):
        check_trackers(trackers)


def test_the_tracker_of_the_document_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "trackers.md").read_text()
    scope: dict[str, Any] = {}
    exec(text.partition("```python\n")[2].partition("```")[0], scope)
    run = small_run(tmp_path / "run")
    config = CustomTrackerConfig(import_path="my_trackers:Prints", options={"prefix": "mine "})
    tell(run, config, scope["Prints"](config, tracked(run, "custom", False)), 2, lambda seconds: "done")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.startswith("mine  3 {") for line in lines)
