"""An algorithm that a user wrote: a package of its own, installed beside Braid, trains as the built-in ones do."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.e2e.runs import Launch

pytestmark = pytest.mark.e2e

STEPS = 2
BOUND = 0.02
SETTINGS = (
    *("--orchestrator.train.algo.bound", str(BOUND)),
    *("--orchestrator.max_off_policy_steps", "0", "--orchestrator.constant_trainer_batch_size", "false"),
    *("--max_steps", str(STEPS), "--orchestrator.batch_size", "16"),
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """What `braid new-algorithm cut-mean` writes, built and installed in a folder of its own."""
    package, target = tmp_path / "braid-cut-mean", tmp_path / "site"
    braid("new-algorithm", "cut-mean", "--folder", str(package))
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    run("-m", "pip", "install", "-q", *options, str(package))
    return target


def run(*args: str, site: Path | None = None) -> str:
    """Run Python, with `site` on its path; returns its output."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"} | ({"PYTHONPATH": str(site)} if site else {})
    done = subprocess.run([sys.executable, *args], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def braid(*args: str, site: Path | None = None) -> str:
    return run("-m", "braidrl.cli", *args, site=site)


def credit(launch: Launch, step: int) -> list[tuple[float, float, np.ndarray]]:
    """Of every trace of a step: its reward, the mean reward of its group, and the recorded advantages of its tokens."""
    groups: dict[str, list[dict]] = {}
    for record in launch.episodes(step):
        groups.setdefault(record["braid"]["group"], []).append(record)
    traces = []
    for records in groups.values():
        rewards = [reward for record in records for reward in record["braid"]["rewards"].values()]
        nodes = [[node for node in record["traces"][0]["nodes"] if any(node["mask"])] for record in records]
        for reward, sampled in zip(rewards, nodes, strict=True):
            advantages = np.concatenate([node["advantages"] for node in sampled])
            assert len(advantages) == sum(sum(node["mask"]) for node in sampled)
            traces.append((reward, float(np.mean(rewards)), advantages))
    return traces


def test_an_installed_algorithm_is_listed_resolved_and_trained(
    site: Path, tmp_path: Path, tiny_model_dir: Path
) -> None:
    """Its advantages reach the trainer: the loss of the first step follows from them alone."""
    shown = " ".join(braid("algorithms", site=site).split())
    assert "source: GRPO (arXiv:2402.03300), within bounds comes from: braid-cut-mean 0.1.0" in shown
    assert "parameters: bound = 1.0" in shown

    launch = Launch(tmp_path, tiny_model_dir, site)
    launch.config = tmp_path / "braid-cut-mean" / "rl.toml"
    settings = (*SETTINGS, "--model.path", str(tiny_model_dir))
    resolved = tomllib.loads(braid("rl", "@", str(launch.config), *settings, "--dry-run", site=site))
    (source,) = resolved["orchestrator"]["train"]["source"]
    assert source["algo"] == {"type": "cut_mean", "bound": BOUND, "sampling": {"source": "policy"}}

    launch.finish(*settings)
    orchestrator, trainer = launch.rows("orchestrator"), launch.rows("trainer")
    assert [row["step"] for row in trainer] == list(range(1, STEPS + 1))
    for step, (shipped, trained) in enumerate(zip(orchestrator, trainer, strict=True), start=1):
        traces = credit(launch, step)
        for reward, mean, advantages in traces:
            np.testing.assert_allclose(
                advantages, np.clip(reward - mean, -BOUND, BOUND), rtol=1e-12, atol=1e-15
            )
        tokens = np.concatenate([advantages for _, _, advantages in traces])
        assert (abs(tokens) == BOUND).any() and tokens.any()
        assert trained["tokens/rl"] == np.count_nonzero(tokens)
        # sampled by the policy that is trained, so that every ratio is 1: the loss is minus the mean advantage
        np.testing.assert_allclose(trained["loss/rl"], -tokens.sum() / np.count_nonzero(tokens), rtol=1e-4)
        assert trained["loss/rl"] != 0 and trained["grad_norm"] > 0 and trained["stepped"] == 1
        assert shipped["algorithm/reverse-text/groups"] == 2

    before, after = (
        load_file(folder / "model.safetensors") for folder in (tiny_model_dir, launch.run.weights(STEPS))
    )
    assert any((before[name] != after[name]).any() for name in before)
