"""A run of the three real processes on the tiny model, part of the default tests."""

from pathlib import Path

import pytest

from braidrl.cli import main
from braidrl.monitors.live import read_live
from braidrl.monitors.record import outcome, read_record
from tests.support.accounts import check_accounts
from tests.support.runs import Launch

STEPS = 6


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Launch:
    """Finished run; read only."""
    made = Launch(tmp_path_factory.mktemp("run"), tiny_model_dir)
    made.finish("--max_steps", str(STEPS))
    return made


def test_every_step_is_taken_and_every_task_is_accounted_for(launch: Launch) -> None:
    for process in ("trainer", "orchestrator"):
        assert [row["step"] for row in launch.rows(process)] == list(range(1, STEPS + 1))
    for row in launch.rows("trainer"):
        assert row["stepped"] == 1 and row["grad_norm"] > 0
    assert check_accounts(launch.run)["trained"] >= STEPS * 16 / 4
    assert (launch.run.weights(STEPS) / "model.safetensors").is_file()


def test_default_run_is_one_step_overlapped(launch: Launch) -> None:
    staleness = [row["staleness/max"] for row in launch.rows("trainer")]
    assert max(staleness) == 1, staleness


def test_a_run_shows_its_steps_and_is_recorded(launch: Launch) -> None:
    output = launch.output.read_text()
    assert f"step {STEPS}/{STEPS}" in output and f"Finished {STEPS} steps" in output
    assert outcome(launch.run).status == "done"
    (record,) = read_record(launch.run)
    assert record.status == "done" and "--max_steps" in record.command
    live = read_live(launch.run.live)
    assert live is not None and 1 <= live.step <= STEPS


def test_finished_run_is_not_overwritten(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    before = launch.run.metrics("trainer").read_bytes()
    words = ["rl", "@", str(launch.config), "--output_dir", str(launch.run.root), "--max_steps", "1"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "--resume" in error and "--clean" in error
    assert launch.run.metrics("trainer").read_bytes() == before
