"""Removal of old checkpoints."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from braidrl.configs.trainer.config import CheckpointConfig
from braidrl.utils.publish import publish_bytes
from braidrl.utils.retention import prune_checkpoints
from braidrl.utils.run_folder import RunFolder


def keep(keep_last: int | None, keep_every: int | None = None) -> CheckpointConfig:
    return CheckpointConfig(interval=1, keep_last=keep_last, keep_every=keep_every)


def complete(run: RunFolder, *steps: int) -> None:
    for step in steps:
        half(run, step)
        publish_bytes(run.orchestrator_checkpoint(step), b"{}")


def half(run: RunFolder, step: int) -> None:
    run.trainer_checkpoint(step).mkdir(parents=True)


def test_only_complete_checkpoints_count(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    complete(run, 1)
    half(run, 2)
    half(run, 3)
    assert prune_checkpoints(run, keep(1)) == []
    complete(run, 4)
    half(run, 5)
    assert prune_checkpoints(run, keep(2)) == []
    assert prune_checkpoints(run, keep(1)) == [1, 2, 3]
    assert run.published("checkpoints") == [4, 5] and run.checkpoints() == [4]
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.tmp")] == []


def test_multiples_stay_besides_the_last(tmp_path: Path) -> None:
    run, config = RunFolder(tmp_path), keep(2, 3)
    for step in range(1, 11):
        complete(run, step)
        prune_checkpoints(run, config)
        assert run.checkpoints() == [n for n in range(1, step + 1) if n % 3 == 0 or n > step - 2]
    run = RunFolder(tmp_path / "torn")
    complete(run, 1)
    half(run, 3)  # the orchestrator's half was never written
    complete(run, 4, 5)
    assert prune_checkpoints(run, config) == [1, 3]


def test_without_a_number_everything_stays(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    complete(run, *range(1, 8))
    assert prune_checkpoints(run, CheckpointConfig(interval=1)) == []
    assert run.checkpoints() == [*range(1, 8)]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"interval": 10, "keep_every": 20},
            "keep_every = 20 has no effect .*set keep_last",
        ),
        ({"interval": 10, "keep_last": 2, "keep_every": 25}, r"not a multiple of interval \(10\)"),
        ({"keep_last": 2, "keep_every": 25}, r"not a multiple of interval \(None\)"),
    ],
)
def test_what_would_keep_nothing_is_refused(keys: dict[str, int], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CheckpointConfig.model_validate(keys)
