"""The trainer process on a real tiny model: learning, exact resuming, and errors for non-finite values."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from braidrl.configs.trainer.config import TrainerConfig
from braidrl.monitors.metrics import read_metrics
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.step import Learner, NonFiniteError
from braidrl.trainer.rl.train import train
from braidrl.transport.rollouts import BatchWriter
from braidrl.transport.types import TrainingBatch, TrainingSample
from braidrl.utils.run_folder import RunFolder
from tests.support.trainer_batches import make_batch, make_sample, trainer_config

ALONE = Parallel(0, 1, torch.device("cpu"))


def ship(config: TrainerConfig, batches: dict[int, list[TrainingSample]]) -> RunFolder:
    run = RunFolder(config.output_dir)
    for step, samples in batches.items():
        BatchWriter(run).publish(TrainingBatch(step=step, samples=samples))
    return run


def weights_of(run: RunFolder, version: int) -> dict[str, torch.Tensor]:
    return load_file(run.weights(version) / "model.safetensors")


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize(("component", "objective"), [("rl", "loss"), ("ce", "loss"), ("ref_kl", "ref_kl")])
def test_a_step_improves_each_component(tiny_model_dir, tmp_path, component, objective) -> None:
    learner = Learner.load(trainer_config(tiny_model_dir, tmp_path, max_steps=3), ALONE)
    batch = make_batch(1, component)
    first, second = learner.step(1, batch), learner.step(2, batch)
    # ref_kl is a policy gradient loss: its value shows no progress, but the distance to the reference does
    sign = -1 if component == "ref_kl" else 1
    assert sign * second[objective] < sign * first[objective]
    assert first["loss"] == pytest.approx(first[f"loss/{component}"])
    assert first["tokens/" + component] == sum(int(sample.mask.sum()) for sample in batch)
    assert first["grad_norm"] > 0 and first["lr"] == 1e-2 and first["stepped"] == 1
    assert first["tokens"] == sum(len(sample.token_ids) for sample in batch) >= first["tokens/packed"]
    assert first[f"tokens/env/{component}-env"] == first["tokens"]
    assert first["entropy"] == pytest.approx(math.log(265), rel=0.01)


def test_a_run_publishes_every_version_and_ends_by_itself(tiny_model_dir: Path, tmp_path: Path) -> None:
    config = trainer_config(tiny_model_dir, tmp_path, max_steps=3)
    run = ship(config, {step: make_batch(step) for step in (1, 2, 3)})
    train(config, None)
    assert run.published("weights") == [1, 2, 3]
    assert run.published("batches") == []
    assert run.trainer_checkpoint(3).is_dir() and not run.trainer_checkpoint(1).exists()
    rows = read_metrics(run.metrics("trainer"))
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert [row["staleness/max"] for row in rows] == [0, 1, 2]
    train(config, resume_step=3)
    assert len(read_metrics(run.metrics("trainer"))) == 3


def test_two_steps_and_two_more_equal_four(tiny_model_dir: Path, tmp_path: Path) -> None:
    batches = {step: make_batch(step) for step in (1, 2, 3, 4)}
    schedule = {"type": "cosine", "warmup_steps": 1, "decay_steps": 5}
    whole = trainer_config(tiny_model_dir, tmp_path / "whole", max_steps=4, scheduler=schedule)
    parts = trainer_config(tiny_model_dir, tmp_path / "parts", max_steps=2, scheduler=schedule)
    run_whole = ship(whole, batches)
    run_parts = ship(parts, batches)
    train(whole, None)
    train(parts, None)
    train(parts.model_copy(update={"max_steps": 4}), resume_step=2)
    assert_same(weights_of(run_whole, 4), weights_of(run_parts, 4))
    for name in ("model", "optimizer", "rng"):
        path = run_whole.trainer_checkpoint(4) / f"{name}.safetensors"
        assert_same(load_file(path), load_file(run_parts.trainer_checkpoint(4) / path.name))
    exact = ("step", "loss", "grad_norm", "lr", "entropy")
    one, other = (
        [[row[name] for name in exact] for row in read_metrics(run.metrics("trainer"))]
        for run in (run_whole, run_parts)
    )
    assert one == other


def test_a_resumed_run_publishes_weights_that_were_lost(tiny_model_dir: Path, tmp_path: Path) -> None:
    config = trainer_config(tiny_model_dir, tmp_path, max_steps=1)
    run = ship(config, {1: make_batch(1)})
    train(config, None)
    before = weights_of(run, 1)
    shutil.rmtree(run.weights(1))
    train(config, resume_step=1)
    assert_same(weights_of(run, 1), before)


def test_weights_do_not_depend_on_the_micro_batches(tiny_model_dir: Path, tmp_path: Path) -> None:
    results = []
    for tokens in (8, 24, 512):
        learner = Learner.load(trainer_config(tiny_model_dir, tmp_path, micro_batch_tokens=tokens), ALONE)
        metrics = learner.step(1, make_batch(1))
        results.append((metrics, {name: value.clone() for name, value in learner.model.state_dict().items()}))
    for metrics, weights in results[1:]:
        for name in ("loss", "loss/rl", "loss/ce", "loss/ref_kl", "grad_norm", "entropy", "nll", "tokens/rl"):
            assert metrics[name] == pytest.approx(results[0][0][name], rel=1e-5, abs=1e-7), name
        for name, tensor in weights.items():
            torch.testing.assert_close(tensor, results[0][1][name], rtol=1e-5, atol=1e-6)


def test_activation_checkpointing_changes_nothing(tiny_model_dir: Path, tmp_path: Path) -> None:
    plain, recomputed = (
        Learner.load(trainer_config(tiny_model_dir, tmp_path, activation_checkpointing=enabled), ALONE)
        for enabled in (False, True)
    )
    assert plain.step(1, make_batch(1))["grad_norm"] == recomputed.step(1, make_batch(1))["grad_norm"]
    assert_same(plain.model.state_dict(), recomputed.model.state_dict())


def test_published_weights_give_the_trainers_logits_elsewhere(tiny_model_dir: Path, tmp_path: Path) -> None:
    """Also with a tied head (FIELD_CASES 44), in the published dtype."""
    config = trainer_config(tiny_model_dir, tmp_path)
    learner = Learner.load(config, ALONE)
    learner.step(1, make_batch(1))
    run = RunFolder(tmp_path)
    learner.publish(run, 1)
    served = AutoModelForCausalLM.from_pretrained(run.weights(1))
    ids = torch.arange(12)[None]
    learner.model.set_attn_implementation("sdpa")
    with torch.no_grad():
        torch.testing.assert_close(served(ids).logits, learner.model(ids).logits, rtol=0, atol=1e-6)
    assert served.get_output_embeddings().weight is served.get_input_embeddings().weight
    assert "lm_head.weight" not in weights_of(run, 1)

    half = Learner.load(trainer_config(tiny_model_dir, tmp_path, dtype="bfloat16"), ALONE)
    half.publish(run, 2)
    assert {tensor.dtype for tensor in weights_of(run, 2).values()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.float32}
    assert json.loads((run.weights(2) / "config.json").read_text())["dtype"] == "bfloat16"


def test_bfloat16_compute_stays_close(tiny_model_dir: Path, tmp_path: Path) -> None:
    full = Learner.load(trainer_config(tiny_model_dir, tmp_path), ALONE).step(1, make_batch(1))
    config = trainer_config(tiny_model_dir, tmp_path, dtype="bfloat16")
    half = Learner.load(config, ALONE).step(1, make_batch(1))
    assert half["loss"] == pytest.approx(full["loss"], rel=1e-2)
    assert half["grad_norm"] == pytest.approx(full["grad_norm"], rel=2e-2)


@pytest.mark.parametrize("kind", ["none", "no members"])
def test_an_empty_batch_publishes_the_same_weights_again(tiny_model_dir, tmp_path, kind, caplog) -> None:
    samples = [] if kind == "none" else [without_members(make_sample(1))]
    config = trainer_config(tiny_model_dir, tmp_path)
    run = ship(config, {1: samples, 2: make_batch(2)})
    train(config, None)
    base = load_file(tiny_model_dir / "model.safetensors")
    assert_same(weights_of(run, 1), base)
    assert not torch.equal(weights_of(run, 2)["model.norm.weight"], base["model.norm.weight"])
    rows = read_metrics(run.metrics("trainer"))
    assert [row["stepped"] for row in rows] == [0, 1]
    assert "no token to learn from" in caplog.text


def without_members(sample: TrainingSample) -> TrainingSample:
    sample.rl_weights = np.zeros(len(sample.token_ids), np.float32)
    return sample


def poison(sample: TrainingSample, kind: str) -> TrainingSample:
    if kind == "logprob":
        sample.temperature = 1e-40
    else:
        # each advantage is finite, but their sum or the gradient is not
        assert sample.advantages is not None
        sample.advantages = np.where(sample.mask, 3e38, 0).astype(np.float32)
    return sample


@pytest.mark.parametrize("kind", ["logprob", "advantage"])
def test_what_is_not_finite_stops_the_step_and_names_the_sample(tiny_model_dir, tmp_path, kind) -> None:
    config = trainer_config(tiny_model_dir, tmp_path, micro_batch_tokens=16)
    batch = make_batch(1)
    batch[3] = poison(make_sample(77, completion=9), kind)
    run = ship(config, {1: batch})
    with pytest.raises(
        NonFiniteError, match="env 'rl-env', group 'g77', episode 'e77', trace 't77', branch 0"
    ):
        train(config, None)
    assert run.published("weights") == [] and run.published("batches") == [1]
    assert read_metrics(run.metrics("trainer")) == []

    learner = Learner.load(config, ALONE)
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    with pytest.raises(NonFiniteError):
        learner.step(1, batch)
    assert_same(learner.model.state_dict(), before)
    assert not learner.optimizer.state and all(p.grad is None for p in learner.model.parameters())
    batch[3] = make_sample(3)
    assert math.isfinite(learner.step(1, batch)["loss"])


def test_a_sampler_logprob_that_is_not_finite_is_left_out_and_counted(tiny_model_dir, tmp_path) -> None:
    learner = Learner.load(trainer_config(tiny_model_dir, tmp_path), ALONE)
    batch = make_batch(1, "rl")
    batch[1].sampling_logprobs[-1] = np.nan
    metrics = learner.step(1, batch)
    assert metrics["nonfinite_tokens"] == 1 and math.isfinite(metrics["grad_norm"])


def test_a_batch_stays_until_its_weights_are_published(tiny_model_dir: Path, tmp_path: Path) -> None:
    config = trainer_config(tiny_model_dir, tmp_path)
    run = ship(config, {1: make_batch(1)})
    run.weights(1).mkdir(parents=True)
    with pytest.raises(FileExistsError, match="version 1 is published already"):
        train(config, None)
    assert run.published("batches") == [1]


def test_the_trainer_does_not_wait_forever(tiny_model_dir: Path, tmp_path: Path) -> None:
    config = trainer_config(tiny_model_dir, tmp_path, batch_timeout=0.1)
    with pytest.raises(TimeoutError, match=r"batch of step 1 did not come within 0\.1 s"):
        train(config, None)


def test_old_checkpoints_are_removed_and_never_the_newest(tiny_model_dir: Path, tmp_path: Path) -> None:
    config = trainer_config(tiny_model_dir, tmp_path, max_steps=4, checkpoint={"interval": 1, "keep_last": 2})
    run = ship(config, {step: make_batch(step) for step in (1, 2, 3, 4)})
    for step in (1, 2, 3):
        run.checkpoint(step).mkdir(parents=True)
        run.orchestrator_checkpoint(step).write_text("{}")
    train(config, None)
    assert run.checkpoints() == [2, 3]
    assert run.published("checkpoints") == [2, 3, 4]
