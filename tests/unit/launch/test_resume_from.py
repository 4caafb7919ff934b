"""`--resume` from the run's own checkpoints, and from those of another run."""

import json
from pathlib import Path

import pytest

from braidrl.cli import main
from braidrl.configs.core.errors import ConfigError
from braidrl.launch.options import LaunchOptions, parse_options
from braidrl.launch.resume import open_run_folder
from braidrl.monitors.metrics import MetricsWriter, read_metrics
from braidrl.utils.publish import publish_bytes
from braidrl.utils.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run of three steps, with checkpoints of all and weights of the last two."""
    made = RunFolder(tmp_path / "first")
    for step in (1, 2, 3):
        publish_bytes(made.trainer_checkpoint(step) / "progress.json", json.dumps({"step": step}).encode())
        publish_bytes(made.trainer_checkpoint(step) / "model.safetensors", b"masters of %d" % step)
        publish_bytes(made.orchestrator_checkpoint(step), b"{}")
        MetricsWriter(made.metrics("eval")).log(step, {"reward": 1.0})
        if step > 1:
            publish_bytes(made.weights(step) / "model.safetensors", b"weights of %d" % step)
    return made


def resume(run: RunFolder, path: Path | None = None) -> int:
    return open_run_folder(run, LaunchOptions(resume=True, resume_from=path))


@pytest.mark.parametrize(
    ("args", "path"),
    [
        (["--resume"], None),
        (["--resume", "latest"], None),
        (["--resume", "--trainer.optim.lr", "1"], None),
        (["--resume", "@", "more.toml"], None),
        (
            ["@", "a.toml", "--resume", "outputs/run/checkpoints/step_000040", "--verbose"],
            "outputs/run/checkpoints/step_000040",
        ),
    ],
)
def test_resume_arguments(args: list[str], path: str | None) -> None:
    options = parse_options(args)
    assert options.resume and options.resume_from == (None if path is None else Path(path))
    assert path is None or (options.config_args, options.verbose) == (["@", "a.toml"], True)


def test_resume_from_the_newest_own_checkpoint(run: RunFolder) -> None:
    assert resume(run) == resume(run, run.root) == resume(run, run.checkpoint(3)) == 3
    assert run.published("weights") == [2, 3]


def test_resume_from_an_earlier_own_checkpoint_removes_later_steps(run: RunFolder) -> None:
    assert resume(run, run.checkpoint(2)) == 2
    assert run.checkpoints() == [1, 2] and run.published("weights") == [2]
    assert [line["step"] for line in read_metrics(run.metrics("eval"))] == [1, 2]


def test_resume_from_another_run_in_a_new_folder(run: RunFolder, tmp_path: Path) -> None:
    newest, second = RunFolder(tmp_path / "newest"), RunFolder(tmp_path / "second")
    assert resume(newest, run.root) == 3
    assert resume(second, run.checkpoint(2)) == 2
    for fork, step in ((newest, 3), (second, 2)):
        assert fork.checkpoints() == fork.published("weights") == [step]
        assert (fork.weights(step) / "model.safetensors").read_bytes() == b"weights of %d" % step
        assert (fork.trainer_checkpoint(step) / "model.safetensors").read_bytes() == b"masters of %d" % step
    assert run.checkpoints() == [1, 2, 3], "the first run stays as it is"
    assert resume(newest) == 3, "and then it is a run like any other"


def test_resume_from_a_moved_checkpoint_without_weights(run: RunFolder, tmp_path: Path) -> None:
    moved = tmp_path / "kept" / "best"
    moved.parent.mkdir()
    run.checkpoint(1).rename(moved)
    fork = RunFolder(tmp_path / "fork")
    assert resume(fork, moved) == 1
    assert fork.checkpoints() == [1] and fork.published("weights") == []


def test_occupied_folders_and_incomplete_checkpoints_are_rejected(run: RunFolder, tmp_path: Path) -> None:
    occupied = RunFolder(tmp_path / "occupied")
    publish_bytes(occupied.batch(1), b"")
    with pytest.raises(
        ConfigError, match=r"occupied already contains a run.*belongs to another one; set another output_dir"
    ):
        resume(occupied, run.checkpoint(3))
    run.orchestrator_checkpoint(3).unlink()
    with pytest.raises(ConfigError, match=r"nor a checkpoint: .*step_000003/orchestrator\.json is missing"):
        resume(RunFolder(tmp_path / "fork"), run.checkpoint(3))
    assert resume(RunFolder(tmp_path / "fork"), run.root) == 2
    with pytest.raises(ConfigError, match=r"nor a checkpoint: .*progress\.json is missing"):
        resume(RunFolder(tmp_path / "other"), tmp_path)


def test_clean_does_not_remove_the_model_of_the_config(run: RunFolder, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f"""
        model.path = "{run.weights(3)}"
        [[orchestrator.train.source]]
        env.taskset.id = "reverse-text"
    """)
    command = ["rl", "@", str(file), "--clean", "--dry-run", "--output_dir"]
    assert main([*command, str(tmp_path / "second")]) == 0
    assert main([*command, str(run.root)]) == 2
    assert run.published("weights") == [2, 3]
