"""Layout of a run folder, and selection of complete checkpoints."""

from pathlib import Path

import pytest

from braidrl.utils.publish import publish_bytes, publish_folder
from braidrl.utils.run_folder import RunFolder


def checkpoint(run: RunFolder, step: int, *, trainer: bool = True, orchestrator: bool = True) -> None:
    if trainer:
        with publish_folder(run.trainer_checkpoint(step)) as folder:
            (folder / "state.json").write_text("{}")
    if orchestrator:
        publish_bytes(run.orchestrator_checkpoint(step), b"{}")


def test_checkpoint_needs_both_halves(tmp_path: Path) -> None:
    """FIELD_CASES 45: a checkpoint that only one process finished is not chosen."""
    run = RunFolder(tmp_path)
    checkpoint(run, 2)
    checkpoint(run, 4, orchestrator=False)
    checkpoint(run, 6, trainer=False)
    assert run.checkpoints() == [2]


def test_half_written_folder_is_not_published(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with pytest.raises(RuntimeError, match="power cut"), publish_folder(run.weights(3)) as folder:
        (folder / "model.safetensors").write_bytes(b"half")
        raise RuntimeError("power cut")
    assert run.published("weights") == []
    with publish_folder(run.weights(3)) as folder:
        assert list(folder.iterdir()) == []
    assert run.published("weights") == [3]


def test_forget_after_keeps_what_came_before(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in (1, 2, 3):
        checkpoint(run, step)
        publish_bytes(run.batch(step), b"x")
        publish_bytes(run.train_episodes(step), b"{}\n")
        with publish_folder(run.weights(step)):
            pass
    run.weights(4).with_name("step_000004.tmp").mkdir()
    run.forget_after(2)
    assert run.checkpoints() == [1, 2]
    assert run.published("weights") == [1, 2]
    assert run.published("batches") == [1, 2]
    assert not run.train_episodes(3).exists() and run.train_episodes(2).exists()
    assert [path.name for path in (tmp_path / "weights").iterdir() if path.suffix] == []


def test_folder_without_a_run_has_nothing(tmp_path: Path) -> None:
    assert RunFolder(tmp_path / "nowhere").checkpoints() == []
