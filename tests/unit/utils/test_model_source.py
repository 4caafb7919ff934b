"""Resolution of a path to a policy."""

import json
from pathlib import Path

import pytest

from braidrl.utils.model_source import ModelSource, find_model
from braidrl.utils.publish import publish_bytes
from braidrl.utils.run_folder import RunFolder


def weights(run: RunFolder, step: int) -> Path:
    publish_bytes(run.weights(step) / "config.json", b"{}")
    return run.weights(step)


def checkpoint(run: RunFolder, step: int) -> Path:
    publish_bytes(run.trainer_checkpoint(step) / "progress.json", json.dumps({"step": step}).encode())
    publish_bytes(run.trainer_checkpoint(step) / "model.safetensors", b"")
    return run.trainer_checkpoint(step)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Run with weights of steps 2 and 3 and checkpoints of steps 1 and 2."""
    made = RunFolder(tmp_path / "run")
    for step in (2, 3):
        weights(made, step)
    for step in (1, 2):
        checkpoint(made, step)
    return made


def test_a_run_folder_means_its_newest_step_or_the_one_that_is_asked_for(run: RunFolder) -> None:
    assert find_model(run.root) == ModelSource(run.weights(3), None, run, 3)
    assert find_model(run.root, 2) == ModelSource(run.weights(2), run.trainer_checkpoint(2), run, 2)
    assert find_model(run.root, 1) == ModelSource(None, run.trainer_checkpoint(1), run, 1)
    with pytest.raises(ValueError, match=r"no weights or checkpoint of step 7; available steps: \[1, 2, 3\]"):
        find_model(run.root, 7)


def test_a_checkpoint_or_weights_know_their_run_and_step(run: RunFolder) -> None:
    both = ModelSource(run.weights(2), run.trainer_checkpoint(2), run, 2)
    assert find_model(run.checkpoint(2)) == find_model(run.trainer_checkpoint(2)) == both
    assert find_model(run.weights(3)) == ModelSource(run.weights(3), None, run, 3)
    assert find_model(run.weights(3), 3).step == 3
    with pytest.raises(ValueError, match="is a single model, not a run folder; remove step 4"):
        find_model(run.weights(3), 4)


def test_what_was_moved_away_stands_for_itself(run: RunFolder, tmp_path: Path) -> None:
    run.checkpoint(2).rename(tmp_path / "best")
    assert find_model(tmp_path / "best") == ModelSource(None, tmp_path / "best" / "trainer", None, 2)
    run.weights(3).rename(tmp_path / "step_000003")
    assert find_model(tmp_path / "step_000003") == ModelSource(tmp_path / "step_000003", None, None)


def test_half_written_and_missing_things_are_not_chosen(run: RunFolder, tmp_path: Path) -> None:
    run.weights(3).rename(run.weights(3).with_suffix(".tmp"))
    run.trainer_checkpoint(2).rename(run.trainer_checkpoint(2).with_suffix(".tmp"))
    assert find_model(run.root) == ModelSource(run.weights(2), None, run, 2)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        find_model(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"no model in .*config\.json \(a Hugging Face folder\)"):
        find_model(tmp_path)
