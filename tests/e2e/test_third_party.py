"""User code in real runs: an algorithm and a loss of installed packages, and a loss in the current directory."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from braidrl.cli import main
from tests.support.packages import commands, installed_loss
from tests.support.runs import Launch

pytestmark = pytest.mark.slow

STEPS = 2
BOUND = 0.02
SCALE = 2.0
SETTINGS = (
    *("--orchestrator.train.algo.bound", str(BOUND)),
    *("--orchestrator.max_off_policy_steps", "0", "--orchestrator.constant_trainer_batch_size", "false"),
    *("--max_steps", str(STEPS), "--orchestrator.batch_size", "16"),
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Package written by `braid new-algorithm cut-mean`, built and installed into a separate folder."""
    package, target = tmp_path / "braid-cut-mean", tmp_path / "site"
    assert main(["new-algorithm", "cut-mean", "--folder", str(package)]) == 0
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    pip = [sys.executable, "-m", "pip", "install", "-q", *options, str(package)]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return target


def credit(launch: Launch, step: int) -> list[tuple[float, float, np.ndarray]]:
    """Return for each trace of a step: reward, mean reward of its group, and recorded advantages of its tokens."""
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


def test_an_installed_algorithm_and_loss_are_listed_resolved_and_trained(
    site: Path, tmp_path: Path, tiny_model_dir: Path
) -> None:
    """The advantages of the algorithm reach the loss: they determine the loss of the first step."""
    launch = Launch(tmp_path, tiny_model_dir, installed_loss(site))
    launch.config = tmp_path / "braid-cut-mean" / "rl.toml"
    loss = ("--trainer.loss.type", "trusting", "--trainer.loss.scale", str(SCALE))
    settings = (*SETTINGS, *loss, "--model.path", str(tiny_model_dir))
    with commands(site) as braid:
        shown = " ".join(braid("algorithms").stdout.split())
        assert "source: GRPO (arXiv:2402.03300), clipped comes from: braid-cut-mean 0.1.0" in shown
        assert "parameters: bound = 1.0" in shown
        done = braid("rl", "@", str(launch.config), *settings, "--dry-run")
        (source,) = tomllib.loads(done.stdout)["orchestrator"]["train"]["source"]
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
        # The trained policy sampled the tokens: every ratio is 1, and the loss is minus the mean advantage times SCALE.
        expected = -SCALE * tokens.sum() / np.count_nonzero(tokens)
        np.testing.assert_allclose(trained["loss/rl"], expected, rtol=1e-4)
        assert abs(trained["ratio"] - 1) < 1e-4
        assert trained["loss/rl"] != 0 and trained["grad_norm"] > 0 and trained["stepped"] == 1
        assert shipped["algorithm/reverse-text/groups"] == 2

    before, after = (
        load_file(folder / "model.safetensors") for folder in (tiny_model_dir, launch.run.weights(STEPS))
    )
    assert any((before[name] != after[name]).any() for name in before)


ON_POLICY = (
    *("--max_steps", str(STEPS), "--orchestrator.max_off_policy_steps", "0"),
    *("--orchestrator.train.algo.advantage_norm", "none"),  # otherwise the advantages would cancel
)
OWN_LOSS = """
from braidrl.trainer.rl.loss import LossOutputs

def gain(inputs, scale):
    ratio = (inputs.trainer_logprobs - inputs.inference_logprobs).exp()
    chosen = (ratio * inputs.advantages)[inputs.loss_mask]
    return LossOutputs(loss=-scale * chosen.sum(), metrics={"gain": chosen.detach().mean()})
"""


def check_gain(launch: Launch, scale: float) -> None:
    """Every ratio of the first step is 1, so its loss is minus `scale` times the mean recorded advantage."""
    tokens = np.concatenate([advantages for _, _, advantages in credit(launch, 1)])
    trained = launch.rows("trainer")
    assert [row["step"] for row in trained] == list(range(1, STEPS + 1))
    assert trained[0]["tokens/rl"] == np.count_nonzero(tokens)
    np.testing.assert_allclose(
        trained[0]["loss/rl"], -scale * tokens.sum() / np.count_nonzero(tokens), rtol=1e-4
    )
    assert trained[0]["loss/rl"] < 0 < trained[0]["grad_norm"] and trained[0]["stepped"] == 1


def test_a_loss_in_the_folder_of_the_run_trains(tmp_path: Path, tiny_model_dir: Path) -> None:
    """The console script finds the loss like the processes do. If it is missing, the error comes before any process
    starts."""
    launch = Launch(tmp_path, tiny_model_dir)
    (tmp_path / "own_loss.py").write_text(OWN_LOSS)
    settings = ("--trainer.loss.type", "custom", "--trainer.loss.kwargs.scale", "3", *ON_POLICY)
    script = Path(sys.executable).with_name("braid")
    command = [str(script), "rl", "@", str(launch.config), "--output_dir", "run", *settings]
    for name, code in (("gains", 2), ("gain", 0)):
        flags = ["--trainer.loss.import_path", f"own_loss.{name}"]
        done = subprocess.run(
            command + flags,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            timeout=180,
        )
        assert done.returncode == code, done.stdout + done.stderr
        if code:
            assert "trainer.loss.import_path: 'own_loss.gains'" in done.stderr
            assert "did you mean 'gain'?" in done.stderr and not launch.run.root.exists()
    assert launch.rows("trainer")[0]["gain"] == launch.rows("trainer")[0]["gain/env/reverse-text"]
    check_gain(launch, 3)
