"""`braid runs` and `braid compare`: output for real run folders, and errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from braidrl.cli import main
from braidrl.entrypoints.compare import short_names
from braidrl.entrypoints.runs import duration
from braidrl.monitors.follow import last_row
from braidrl.monitors.metrics import MetricsWriter
from braidrl.monitors.record import RunRecord, read_record, recorded
from braidrl.report.sparkline import plain, resample, sparkline
from braidrl.utils.run_folder import RunFolder

CONFIG = """\
max_steps = 4
output_dir = "{root}"
[model]
path = "m"
[trainer.optim]
lr = {lr}
[trainer.model]
path = "m"
[[orchestrator.train.source]]
group_size = {group_size}
"""


def write_run(root: Path, lr: float = 1e-5, group_size: int = 8, steps: int = 4) -> RunFolder:
    """Write a run of the given number of steps whose reward rises with the learning rate."""
    run = RunFolder(root)
    run.configs.mkdir(parents=True)
    (run.configs / "rl.toml").write_text(CONFIG.format(root=root, lr=lr, group_size=group_size))
    for step in range(1, steps + 1):
        reward = {"reward/mean": step * lr * 1e4, "reward/words/mean": step * lr * 1e4, "staleness/mean": 0.5}
        MetricsWriter(run.metrics("orchestrator")).log(step, reward)
        MetricsWriter(run.metrics("trainer")).log(step, {"loss": -0.5, "tokens_per_second": 1234.0, "lr": lr})
    held = {"eval/held/reward/mean": 0.625, "eval/held/reward/ci95": 0.125, "eval/held/pass@1": 0.5}
    MetricsWriter(run.metrics("eval")).log(steps, held)
    return run


def shown(capsys: pytest.CaptureFixture[str], *args: object) -> list[str]:
    assert main([str(arg) for arg in args]) == 0
    return capsys.readouterr().out.splitlines()


def test_runs_are_listed_with_status_and_last_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with recorded(write_run(tmp_path / "good")):
        pass
    failing = recorded(write_run(tmp_path / "deep" / "bad", steps=2))
    with pytest.raises(RuntimeError), failing:
        raise RuntimeError("trainer was killed by SIGKILL; last lines of trainer.log:\n  | boom")
    killed = write_run(tmp_path / "killed", steps=3)
    with recorded(killed):
        (launch,) = read_record(killed)
    launch.born = 1  # start time of an earlier process with the same id
    killed.record.write_bytes(msgspec.json.encode(RunRecord([launch])))
    write_run(tmp_path / "old")
    (tmp_path / "empty").mkdir()

    header, *rows = shown(capsys, "runs", tmp_path)
    assert " ".join(header.split()) == "run kind status step reward loss KL stale tok/s started took"
    cells = {row.split()[0]: row.split()[1:] for row in rows[:-1]}
    assert cells[str(tmp_path / "good")][:7] == ["rl", "done", "4/4", "0.400", "-0.5000", "-", "0.5"]
    assert cells[str(tmp_path / "deep" / "bad")][:4] == ["rl", "failed", "2/4", "0.200"]
    assert cells[str(tmp_path / "killed")][:3] == ["rl", "killed", "3/4"]
    assert cells[str(tmp_path / "old")][:3] == ["rl", "unknown", "4/4"] and len(cells) == 4
    assert rows[-1] == f"{tmp_path / 'deep' / 'bad'}: trainer was killed by SIGKILL"

    listed = {
        Path(each["run"]).name: each
        for each in json.loads("\n".join(shown(capsys, "runs", tmp_path, "--json")))
    }
    assert listed["bad"]["status"] == "failed" and listed["bad"]["metrics"]["trainer"]["loss"] == -0.5
    assert listed["good"]["seconds"] >= 0.0 and listed["old"]["seconds"] is None


def test_running_run_is_detected_by_another_process(tmp_path: Path) -> None:
    with recorded(write_run(tmp_path / "mine", steps=1)):
        command = [sys.executable, "-m", "braidrl.cli", "runs", str(tmp_path)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "300"}
        )
    assert done.returncode == 0 and done.stdout.splitlines()[1].split()[1:4] == ["rl", "running", "1/4"]


def test_evaluation_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunFolder(tmp_path / "held")
    run.configs.mkdir(parents=True)
    (run.configs / "eval.toml").write_text("seq_len = 64\n")
    MetricsWriter(run.metrics("eval")).log(7, {"eval/a/reward/mean": 0.25, "eval/b/reward/mean": 0.75})
    with recorded(run):
        pass
    _, row = shown(capsys, "runs", tmp_path)
    assert row.split()[1:5] == ["eval", "done", "v7", "0.500"]
    (listed,) = json.loads("\n".join(shown(capsys, "runs", tmp_path, "--json")))
    assert (listed["kind"], listed["step"]) == ("eval", 7)


def test_folders_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "runs", tmp_path) == [f"no runs in {tmp_path}"]
    assert main(["runs", str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    run = write_run(tmp_path / "run")
    run.record.write_text("{")
    assert main(["runs", str(tmp_path)]) == 2
    assert f"{run.record} is not a run record" in capsys.readouterr().err


def test_compare_shows_what_differs_and_every_curve_on_one_scale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = write_run(tmp_path / "a"), write_run(tmp_path / "b", lr=2e-5, group_size=16)
    lines = shown(capsys, "compare", first.root, second.root)
    table = {line.split()[0]: line.split()[1:] for line in lines if line}
    assert table["config"] == table["metric"] == ["a", "b"]
    assert table["trainer.optim.lr"] == ["1e-05", "2e-05"]
    assert table["orchestrator.train.source[0].group_size"] == ["8", "16"]
    assert not {"output_dir", "max_steps", "trainer.model.path"} & table.keys()
    assert table["orchestrator/reward/words/mean"] == [
        *["▁▂▃▄", "0.1", "→", "0.4"],
        *["▂▄▆█", "0.2", "→", "0.8"],
    ]
    assert table["eval/held/reward/mean"] == [*["0.625", "±", "0.125"]] * 2
    assert "trainer/lr" not in table
    names = [line.split()[0] for line in lines[lines.index("") + 2 :]]
    assert names[0].startswith("eval/") and names.index("trainer/loss") == len(names) - 2


def test_compare_selected_metrics_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = write_run(tmp_path / "a"), write_run(tmp_path / "b", lr=2e-5, steps=1)
    lines = shown(capsys, "compare", first.root, second.root, "--metrics", "trainer/lr,staleness")
    assert [line.split()[0] for line in lines[lines.index("") + 1 :]] == [
        "metric",
        "orchestrator/staleness/mean",
        "trainer/lr",
    ]
    found = json.loads("\n".join(shown(capsys, "compare", first.root, second.root, "--json")))
    assert found["config"] == {"trainer.optim.lr": [1e-5, 2e-5]}
    assert found["metrics"]["trainer/loss"][0] == {"steps": [1, 2, 3, 4], "values": [-0.5] * 4, "ci95": None}
    assert found["metrics"]["eval/held/reward/mean"][1] == {"steps": [1], "values": [0.625], "ci95": 0.125}


def test_compare_reports_equal_configs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    assert shown(capsys, "compare", first.root, second.root)[0] == "the configs are the same"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{a}"], "cannot compare a single run"),
        (["{a}", "{nowhere}"], "nowhere is not a run folder"),
        (["{a}", "{a}", "--metrics", "nonsense"], "no run has a metric with 'nonsense'"),
    ],
)
def test_compare_errors(
    args: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "a")
    assert main(["compare", *(arg.format(a=run.root, nowhere=tmp_path / "nowhere") for arg in args)]) == 2
    assert message in capsys.readouterr().err


def test_sparkline_averages_points_that_do_not_fit() -> None:
    assert sparkline([], 8) == "" and sparkline([float("nan")], 8) == ""
    assert sparkline([1.0, 1.0], 8) == "▁▁"
    assert sparkline([0.0, 0.5, 1.0], 8) == "▁▅█"
    assert sparkline([0.5], 8, low=0.0, high=1.0) == "▅"
    assert resample([0.0, 2.0, 4.0, 6.0, 8.0], 2) == [1.0, 6.0]
    assert plain(sparkline([0.0, 1.0], 2)) == "_@"


def test_last_row_of_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert last_row(path) is None
    path.write_text('{"step": 1}')
    assert last_row(path) is None
    path.write_text('{"step": 1}\n{"ste')
    assert last_row(path) == {"step": 1}
    path.write_text("".join(json.dumps({"step": step, "text": "x" * 50_000}) + "\n" for step in range(6)))
    assert (last_row(path) or {})["step"] == 5


def test_short_names_and_durations() -> None:
    assert short_names([Path("/o/a"), Path("/o/b")]) == ["a", "b"]
    assert short_names([Path("/o/1/rl"), Path("/o/2/rl")]) == ["1/rl", "2/rl"]
    assert list(map(duration, (5.0, 600.0, 9000.0, 200_000.0))) == ["5 s", "10 min", "2.5 h", "2.3 d"]


def test_sft_writes_a_run_record(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "sft"
    flags = {"model.path": tiny_model_dir, "output_dir": root, "max_steps": 1, "batch_size": 2, "threads": 1}
    flags |= {"data.taskset.id": "reverse-text", "data.taskset.num_tasks": 4, "seq_len": 128}
    flags |= {"renderer.name": "qwen3"}
    config = tmp_path / "sft.toml"
    config.write_text("".join(f"{key} = {json.dumps(value, default=str)}\n" for key, value in flags.items()))
    assert main(["sft", "@", str(config)]) == 0
    capsys.readouterr()
    with pytest.raises(FileExistsError):
        main(["sft", "@", str(config)])
    _, row = shown(capsys, "runs", tmp_path)
    assert row.split()[:4] == [str(root), "sft", "done", "1/1"]
    assert len(read_record(RunFolder(root))) == 1
    assert 'id = "reverse-text"' in (root / "config" / "sft.toml").read_text()
