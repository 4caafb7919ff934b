"""A training loop written with the Python API, with the real processes."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import braidrl
from braidrl.configs.core.errors import ConfigError
from braidrl.launch.supervisor import ProcessFailed

STEPS = 3


def vowels(completion: str) -> float:
    return sum(character in "aeiou" for character in completion) / max(12, len(completion))


def config_of(folder: Path, model: Path, **orchestrator: Any) -> dict[str, Any]:
    return {
        "model": {"path": model},
        "output_dir": folder,
        "max_steps": STEPS,
        "seq_len": 64,
        "trainer": {"optim": {"lr": 1e-3}},
        "orchestrator": {
            "batch_size": 16,
            "max_off_policy_steps": 0,
            "constant_trainer_batch_size": False,
            "renderer": {"name": "qwen3", "enable_thinking": False},
            "train": {
                "group_size": 4,
                "sampling": {"max_tokens": 12},
                "source": [{"env": braidrl.environment([f"Sing {n}!" for n in range(20)], vowels)}],
            },
        }
        | orchestrator,
    }


@pytest.mark.slow
def test_steps_by_hand_are_those_of_a_run(tiny_model_dir: Path, tmp_path: Path) -> None:
    whole = braidrl.run(config_of(tmp_path / "whole", tiny_model_dir), quiet=True)
    rows = []
    with braidrl.Loop(config_of(tmp_path / "loop", tiny_model_dir)) as loop:
        for step in range(1, STEPS + 1):
            batch = loop.score(loop.sample())
            assert batch.step == step and {sample.version_start for sample in batch.samples} == {step - 1}
            rows.append(loop.train_step(batch))
            assert loop.publish() == loop.version == step
        with pytest.raises(RuntimeError, match="raise max_steps"):
            loop.sample()
    for mine, theirs in zip(rows, whole.metrics(), strict=True):
        for name in ("loss", "grad_norm", "entropy", "tokens", "staleness/max", "mismatch_kl"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-7), name
    for step in range(1, STEPS + 1):
        assert tokens(loop.run, step) == tokens(whole, step)
    assert loop.run.rewards == pytest.approx(whole.rewards)
    mine, theirs = (load_file(run.weights / "model.safetensors") for run in (loop.run, whole))
    assert mine.keys() == theirs.keys()
    worst = max(float(np.abs(mine[name] - theirs[name]).max()) for name in mine)
    assert worst < 1e-5
    assert json.loads((tmp_path / "loop" / "run.json").read_text())["launches"][0]["status"] == "done"


def tokens(run: braidrl.Run, step: int) -> list[list[int]]:
    """Return all tokens of the step's episodes in order."""
    traces = [trace for episode in run.episodes(step) for trace in episode["traces"]]
    return [[token for node in trace["nodes"] for token in node["token_ids"]] for trace in traces]


@pytest.mark.slow
async def test_a_loop_works_where_an_event_loop_runs_and_does_not_hang(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    assert asyncio.get_running_loop().is_running()  # as in a notebook
    loop = braidrl.Loop(config_of(tmp_path / "run", tiny_model_dir) | {"inference": {"max_restarts": 0}})
    groups = loop.sample()
    assert [len(group.episodes) for group in groups] == [4] * 4
    batch = loop.score(groups[:2])
    assert {sample.group_id for sample in batch.samples} <= {group.id for group in groups[:2]}
    with pytest.raises(ValueError, match="was scored already"):
        loop.score(groups[:1])
    for sample in batch.samples:
        sample.advantages = np.zeros_like(sample.advantages)
    before = {name: value.clone() for name, value in loop.learner.model.state_dict().items()}
    assert loop.train_step(batch)["grad_norm"] == 0.0
    assert all((value == before[name]).all() for name, value in loop.learner.model.state_dict().items())
    assert loop.publish() == 1
    [server] = loop._supervisor.launcher.children.values()  # type: ignore[attr-defined]
    os.kill(server.popen.pid, signal.SIGKILL)
    with pytest.raises(ProcessFailed, match="inference was killed by SIGKILL"):
        loop.sample()
    loop.close()
    loop.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "path"),
    [({"share_device": True}, "share_device"), ({"launcher": "ray"}, "launcher")],
)
def test_what_one_process_cannot_do_is_refused(
    tiny_model_dir: Path, tmp_path: Path, keys: dict[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError, match=f"{path}: is .* a Loop trains in a single process"):
        braidrl.Loop(config_of(tmp_path / "run", tiny_model_dir) | keys)
    assert not (tmp_path / "run").exists()
