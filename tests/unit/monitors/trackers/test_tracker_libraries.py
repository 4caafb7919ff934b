"""Experiment trackers with their real libraries, offline: a run is read back from their files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tracked_runs import GLANCES, series_in_tensorboard, small_run, tell_all, write_step

from braidrl.configs.trackers import MLflowTrackerConfig, TensorBoardTrackerConfig, WandbTrackerConfig
from braidrl.monitors.metrics import MetricsWriter
from braidrl.monitors.record import recorded
from braidrl.monitors.trackers.send import tracked


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
    """Yield the records of an offline run of Weights & Biases.

    The file is a LevelDB log of protocol buffers in blocks of 32 KiB. Each fragment has a header of 7 bytes: checksum
    (4), length (2) and type (1 whole, 2 first, 3 middle, 4 last).
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, pieces = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 0x8000 - at % 0x8000 < 7:  # the rest of the block is too short for a header
            at += 0x8000 - at % 0x8000
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        pieces += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(pieces)
            pieces = b""


@pytest.mark.slow
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


@pytest.mark.slow
def test_mlflow_keeps_a_run_in_files_and_goes_on_with_it(tmp_path: Path) -> None:
    from braidrl.monitors.trackers.mlflow import MlflowClient  # enables MLflow's file store

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
    """Return the name under which MLflow stores a metric."""
    section, _, rest = name.partition("/")
    return f"{section}/{rest.replace('/', '.')}"
