"""Field case 8: every algorithm with one episode per task, in a run against stub servers."""

import logging
from pathlib import Path
from typing import Any

import pytest

from braidrl.orchestrator.pipeline.no_signal import NoSignalError
from tests.support.fake_teacher import FakeTeacher
from tests.unit.orchestrator.train.algo.test_algorithms_pipeline import ScoringStub, run, shipped

SETTINGS: dict[str, Any] = {"group_size": 1, "max_steps": 1}


@pytest.mark.parametrize(
    ("algo", "warning"),
    [
        ({"type": "grpo"}, "set group_size to 2 or more"),
        ({"type": "max_rl"}, "set group_size to 2 or more"),
        ({"type": "echo"}, "set group_size to 2 or more"),
        ({"type": "hierarchical_grpo", "episode_agents": ["agent"]}, "no trace of a group has a peer"),
    ],
)
async def test_missing_siblings_log_a_warning(
    algo: dict[str, Any], warning: str, tiny_model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(NoSignalError, match="no signal in"):
        await run(tiny_model_dir, tmp_path, {"stub": algo}, **SETTINGS, max_empty_batches=2)
    assert sum(warning in line for line in caplog.messages) == 1


async def test_the_others_train_without_siblings(tiny_model_dir: Path, tmp_path: Path) -> None:
    async with ScoringStub(model="teacher") as frozen, FakeTeacher().serving() as url:
        algos = {
            "play": {"type": "rae"},
            "imitate": {"type": "sft", "sampling": {"source": {"name": "teacher", "base_url": frozen.url}}},
            "distil": {"type": "opd", "teacher": {"name": "teacher", "base_url": url}},
        }
        by_env = shipped(await run(tiny_model_dir, tmp_path, algos, **SETTINGS, batch_size=12))
    assert by_env.keys() == algos.keys()
    first, *_ = by_env["play"]
    assert first.advantages is not None and first.advantages[-1] == pytest.approx(first.reward)  # baseline 0
    assert all(sample.ce_weights is not None for sample in by_env["imitate"])
    assert all(sample.ref_logprobs is not None for sample in by_env["distil"])
