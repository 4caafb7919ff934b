"""Sharded and offloaded training equals five steps of one process, and any number of processes can continue from a
checkpoint (FIELD_CASES 2, 46)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from braidrl.trainer.parallel import Parallel, data_parallel, gathered_state
from braidrl.trainer.rl.step import Learner
from braidrl.trainer.shards import PartsReader
from braidrl.trainer.state.checkpoint import load_checkpoint, save_checkpoint
from braidrl.utils.run_folder import RunFolder
from tests.support.ranks import run_ranks
from tests.support.trainer_batches import make_batch, trainer_config

ALONE = Parallel(0, 1, torch.device("cpu"))
STEPS, SAVED = 5, 3
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "each": {"parallel": {"reduce_each_micro_batch": True}},
    "offload": {"optim": {"lr": 1e-2, "eps": 1e-3, "weight_decay": 0.1, "offload": True}},
    "activations": {"activation_offload": True},
}
HYBRID = {
    name: {"parallel": {"shard_size": 2, "reduce_each_micro_batch": name == "each"}}
    for name in ("once", "each")
}


class CountedSums(TorchDispatchMode):
    """Counts the reductions of gradients over processes."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += "reduce_scatter" in str(func)
        return func(*args, **(kwargs or {}))


def load_learner(model: Path, root: Path, options: dict[str, Any], parallel: Parallel) -> Learner:
    return Learner.load(
        trainer_config(model, root, max_steps=STEPS, micro_batch_tokens=24, **options), parallel
    )


def save(learner: Learner, step: int) -> None:
    run = RunFolder(learner.config.output_dir)
    save_checkpoint(run.trainer_checkpoint(step), learner.model, learner.optimizer, step, learner.parallel)


def learn(learner: Learner, first: int = 1) -> None:
    """Take the steps from `first` on. Saves two checkpoints and the losses."""
    losses = []
    for step in range(first, STEPS + 1):
        losses.append(learner.step(step, make_batch(step, size=12))["loss"])
        if step in (SAVED, STEPS):
            save(learner, step)
    if learner.parallel.leads:
        (learner.config.output_dir / "losses.json").write_text(json.dumps(losses))


def go_on(
    model: Path, root: Path, checkpoint: Path, parallel: Parallel, options: dict[str, Any] | None = None
) -> None:
    learner = load_learner(model, root, options or {}, parallel)
    assert load_checkpoint(checkpoint, learner.model, learner.optimizer, parallel) == SAVED
    learn(learner, SAVED + 1)


def two(model: Path, root: Path) -> None:
    """Run every variant, count the gradient reductions, and check that only the first process gathers the whole
    model."""
    with data_parallel(timeout=60) as parallel:
        sums = {}
        for name, options in VARIANTS.items():
            learner = load_learner(model, root / name, options, parallel)
            assert all(isinstance(parameter, DTensor) for parameter in learner.model.parameters())
            learn(learner)
            with CountedSums() as counted:
                learner.step(STEPS + 1, make_batch(1, size=12))
            sums[name] = counted.number
        learner._logprobs(learner.policy, make_batch(1, size=12))
        assert all(isinstance(parameter, DTensor) for parameter in learner.model.parameters())
        learner.to_host()
        learner.to_device()
        learner.step(STEPS + 2, make_batch(1, size=12))
        state = gathered_state(learner.model, parallel, torch.bfloat16)
        if parallel.leads:
            (root / "sums.json").write_text(json.dumps(sums))
        else:
            assert all(tensor.numel() == 0 for tensor in state.values())


def three(model: Path, root: Path, checkpoint: Path) -> None:
    with data_parallel(timeout=60) as parallel:
        go_on(model, root, checkpoint, parallel)


def four(model: Path, root: Path, checkpoint: Path) -> None:
    """Train two copies of the weights, each sharded over two processes. One variant resumes a checkpoint of two
    processes."""
    with data_parallel(timeout=60, shard_size=2) as parallel:
        assert parallel.mesh.shape == (2, 2)
        for name, options in HYBRID.items():
            learn(load_learner(model, root / name, options, parallel))
        learn(load_learner(model, root / "replicated", {}, replace(parallel, shard_size=1)))
        go_on(model, root / "resumed", checkpoint, parallel, HYBRID["once"])


@pytest.fixture(scope="module")
def alone(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("alone")
    learn(load_learner(tiny_model_dir, root, {}, ALONE))
    return root


@pytest.fixture(scope="module")
def pair(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pair")
    run_ranks(2, two, tiny_model_dir, root)
    return root


@pytest.fixture(scope="module")
def quartet(tiny_model_dir: Path, pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("quartet")
    run_ranks(4, four, tiny_model_dir, root, RunFolder(pair / "plain").trainer_checkpoint(SAVED))
    return root


def tensors(root: Path, step: int = STEPS) -> dict[str, torch.Tensor]:
    """Return the unsharded weights and optimizer state of a checkpoint."""
    found = {}
    for kind in ("model", "optimizer"):
        with PartsReader(RunFolder(root).trainer_checkpoint(step), kind) as parts:
            found |= {f"{kind}:{name}": parts.read(name) for name in parts.names()}
    return found


def assert_same_run(root: Path, expected: Path) -> None:
    """Assert that the losses of the last steps, weights and moments agree up to float32 rounding."""
    losses, wanted = (json.loads((folder / "losses.json").read_text()) for folder in (root, expected))
    assert losses == pytest.approx(wanted[-len(losses) :], rel=1e-4, abs=1e-6)
    ours, theirs = tensors(root), tensors(expected)
    assert ours.keys() == theirs.keys() and any("exp_avg_sq/" in key for key in theirs)
    for key, tensor in ours.items():
        scale = float(theirs[key].abs().max())
        torch.testing.assert_close(tensor, theirs[key], rtol=1e-3, atol=1e-5 * scale, msg=key)


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_processes_take_the_five_steps_of_one(alone: Path, pair: Path, variant: str) -> None:
    assert_same_run(pair / variant, alone)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["once", "each", "replicated", "resumed"])
def test_two_copies_on_four_processes_take_the_steps_of_one(alone: Path, quartet: Path, variant: str) -> None:
    assert_same_run(quartet / variant, alone)


def test_gradients_are_summed_once_a_step_unless_told_otherwise(pair: Path) -> None:
    sums = json.loads((pair / "sums.json").read_text())
    assert sums["plain"] > 0 and sums["each"] % sums["plain"] == 0 and sums["each"] >= 2 * sums["plain"]


def test_a_checkpoint_of_two_goes_on_in_one_process(
    alone: Path, pair: Path, tiny_model_dir, tmp_path
) -> None:
    go_on(tiny_model_dir, tmp_path, RunFolder(pair / "plain").trainer_checkpoint(SAVED), ALONE)
    assert_same_run(tmp_path, alone)


def test_a_checkpoint_of_two_goes_on_in_three(alone: Path, pair: Path, tiny_model_dir, tmp_path) -> None:
    run_ranks(3, three, tiny_model_dir, tmp_path, RunFolder(pair / "plain").trainer_checkpoint(SAVED))
    assert_same_run(tmp_path, alone)


def test_each_row_is_written_once(pair: Path, quartet: Path) -> None:
    for root in (pair / "plain", quartet / "once"):
        files = sorted(path.name for path in RunFolder(root).trainer_checkpoint(SAVED).glob("model*"))
        assert files == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert (RunFolder(quartet / "replicated").trainer_checkpoint(SAVED) / "model.safetensors").is_file()


def test_a_checkpoint_of_two_is_a_reference(pair: Path, tiny_model_dir: Path, tmp_path: Path) -> None:
    checkpoint = RunFolder(pair / "plain").checkpoint(SAVED)
    learner = load_learner(tiny_model_dir, tmp_path, {"reference_kl": {"path": str(checkpoint)}}, ALONE)
    assert learner.reference is not None
    expected = tensors(pair / "plain", SAVED)
    for name, parameter in learner.reference.model.named_parameters():
        assert torch.equal(parameter, expected[f"model:{name}"])


def test_an_offloaded_optimizer_takes_the_same_steps_bit_by_bit(
    pair: Path, alone, tiny_model_dir, tmp_path
) -> None:
    learn(load_learner(tiny_model_dir, tmp_path / "whole", VARIANTS["offload"], ALONE))
    # the moments were saved without offloading and are loaded with it
    checkpoint = RunFolder(alone).trainer_checkpoint(SAVED)
    go_on(tiny_model_dir, tmp_path / "resumed", checkpoint, ALONE, VARIANTS["offload"])
    for root, expected in [
        (tmp_path / "whole", alone),
        (tmp_path / "resumed", alone),
        (pair / "offload", pair / "plain"),
    ]:
        ours, theirs = tensors(root), tensors(expected)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_lending_the_device_changes_nothing(alone: Path, tiny_model_dir: Path, tmp_path: Path) -> None:
    learner = load_learner(tiny_model_dir, tmp_path, {}, ALONE)
    for step in range(1, STEPS + 1):
        learner.to_host()
        assert all(parameter.grad is None for parameter in learner.model.parameters())
        learner.to_device()
        learner.step(step, make_batch(step, size=12))
    save(learner, STEPS)
    assert all(torch.equal(tensor, tensors(alone)[key]) for key, tensor in tensors(tmp_path).items())
