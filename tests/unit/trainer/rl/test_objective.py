"""The rl component as in training: batch preparation, packing, off-policy protections, regularisers and aggregation."""

import msgspec
import numpy as np
import pytest
import torch

from braidrl.configs.trainer.config import TrainerConfig
from braidrl.trainer.model.forward import TokenOutputs, to_device
from braidrl.trainer.rl.batch import StepBatch
from braidrl.trainer.rl.components import component_loss, reduce_metrics
from braidrl.trainer.rl.objective import RLObjective
from braidrl.trainer.rl.preparation import prepare
from braidrl.transport.types import TrainingSample

STRIDE = 1000
"""Token ids are STRIDE * sample + position."""


def flat(rows: list[list]) -> torch.Tensor:
    return torch.tensor([float(value) for row in rows for value in row], dtype=torch.float64)


def stream(row: list, dtype: type = np.float64) -> np.ndarray:
    """Return a stream with a prompt of one token in front."""
    return np.array([0, *map(float, row)], dtype)


def make_samples(given: dict, advantages: list[float], dtype: type = np.float64) -> list[TrainingSample]:
    return [
        TrainingSample(
            token_ids=(np.arange(len(mask) + 1) + STRIDE * index).astype(np.int32),
            mask=stream(mask) != 0,
            sampling_logprobs=stream(given["rollout_log_prob"][index], dtype),
            advantages=np.full(len(mask) + 1, advantages[index], dtype),
            group_id=given["prompt_ids"][index],
            trace_id=f"t{index}",
        )
        for index, mask in enumerate(given["loss_masks"])
    ]


def trainer_config(config: dict) -> TrainerConfig:
    """Return the config of a worked case with Braid's keys."""
    loss = {"type": config["policy_loss"]}
    loss |= {name: config[name] for name in ("clip_ratio_low", "clip_ratio_high")}
    if config["policy_loss"] == "grpo":
        loss["clip_ratio_c"] = config["clip_ratio_c"]
    keys = {
        name: config[name] for name in ("loss_agg_mode", "is_correction", "m2po", "opsm") if name in config
    }
    if "ref_kl" in config:
        keys["reference_kl"] = {"path": "reference", **config["ref_kl"]}
    return TrainerConfig.model_validate({"model": {"path": "m"}, "loss": loss, **keys})


def train(
    batch: StepBatch, config: TrainerConfig, x: list[torch.Tensor], max_tokens: int, world_size: int = 1
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the loss of a batch under a policy with log-probs `x` (with a leading entry for the prompt)."""
    objective, loss, sums = RLObjective.of(config), torch.zeros(()), {}
    padded = torch.nn.utils.rnn.pad_sequence(x, batch_first=True)
    for rank in range(world_size):
        for row in batch.pack(max_tokens, rank, world_size):
            micro = to_device(row, "cpu")
            logprobs = padded[micro.sample_index, micro.targets % STRIDE]
            outputs = TokenOutputs(logprobs, torch.ones_like(logprobs))
            part, metrics = component_loss(outputs, micro, objective, batch.normalisers)
            loss = loss + part
            sums = {name: pair + sums.get(name, 0) for name, pair in metrics.items()}
    return loss, reduce_metrics(sums)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-9), (np.float32, 1e-5)])
@pytest.mark.parametrize(("max_tokens", "world_size"), [(1, 1), (1000, 1), (12, 2), (1, 3)])
def test_pipeline_vectors(worked_cases, max_tokens, world_size, dtype, tolerance):
    """Values, gradients, weights and masks, in one row, in one row per sample, and over ranks."""
    for case in worked_cases["pipeline"]:
        given, expected = case["inputs"], case["expected"]
        config = trainer_config(given["config"])
        samples = make_samples(given, expected["advantages"], dtype)
        old = [stream(row, dtype) for row in given["old_log_prob"]]
        ref = given.get("ref_log_prob") if config.reference_kl else None
        kl_ref = None if ref is None else [stream(row, dtype) for row in ref]
        batch, _ = prepare(samples, config, old, kl_ref)
        x = [torch.from_numpy(stream(row, dtype)).requires_grad_() for row in given["log_prob"]]
        loss, metrics = train(batch, config, x, max_tokens, world_size)
        gradient = torch.cat([part[1:] for part in torch.autograd.grad(loss, x)]).double()
        assert loss.item() == pytest.approx(expected["loss"], rel=tolerance, abs=tolerance)
        wanted = flat(expected["grad_log_prob"])
        torch.testing.assert_close(gradient, wanted, rtol=tolerance, atol=tolerance)
        if "final_masks" in expected:
            kept = np.concatenate(
                [w[1:] > 0 for w in batch.extra.get("loss_weights", [s.mask for s in samples])]
            )
            assert kept.tolist() == flat(expected["final_masks"]).bool().tolist()
        assert metrics["is_approx_k3_kl"] > 0


def random_batch(
    seed: int, config: TrainerConfig, sizes: tuple[int, ...] = (3, 7, 1, 5, 4)
) -> tuple[StepBatch, list[torch.Tensor]]:
    rng = np.random.default_rng(seed)
    draw = lambda size: stream(rng.normal(-1, 0.3, size))
    samples = [
        TrainingSample(
            token_ids=(np.arange(size + 1) + STRIDE * index).astype(np.int32),
            mask=np.arange(size + 1) > 0,
            sampling_logprobs=draw(size),
            advantages=np.full(size + 1, rng.normal()),
            group_id=f"g{index // 2}",
            trace_id=f"t{index // 2}",
        )
        for index, size in enumerate(sizes)
    ]
    batch, _ = prepare(samples, config, [draw(size) for size in sizes], [draw(size) for size in sizes])
    return batch, [torch.from_numpy(draw(size)).requires_grad_() for size in sizes]


def test_segments_of_one_trajectory_are_pooled():
    """Samples 0 and 1 form one trajectory of ten tokens, so each of its tokens has a tenth of the trajectory's
    weight."""
    config = trainer_config_of(loss_agg_mode="seq-mean-token-mean")
    batch, _ = random_batch(0, config)
    assert batch.normalisers.rl == pytest.approx(3)
    weights = [set(stream[1:].tolist()) for stream in batch.extra["loss_weights"]]
    assert weights == [{0.1}, {0.1}, {1 / 6}, {1 / 6}, {0.25}]


def trainer_config_of(**keys) -> TrainerConfig:
    return TrainerConfig.model_validate({"model": {"path": "m"}, "loss": {"type": "grpo"}, **keys})


def test_the_regularisers_leave_the_policy_loss_and_take_its_aggregation():
    """The expected value is -coef * mean entropy (here 1 nat at every entry) + coef * mean k2."""
    plain, x = random_batch(1, trainer_config_of())
    config = trainer_config_of(entropy_coef=0.5, reference_kl={"path": "r", "coef": 2.0, "kl_type": "k2"})
    base, _ = train(plain, trainer_config_of(), x, 100)
    loss, metrics = train(plain, config, x, 100)
    ref = torch.cat([torch.from_numpy(row[1:]) for row in plain.extra["kl_ref_logprobs"]])
    k2 = ((torch.cat([row[1:] for row in x]) - ref) ** 2 / 2).mean()
    assert loss.item() == pytest.approx((base - 0.5 + 2 * k2).item(), rel=1e-9)
    assert metrics["reference_kl"] == pytest.approx(k2.item(), rel=1e-9)
    assert metrics["pg_loss"] == pytest.approx(base.item(), rel=1e-9) and metrics["entropy/rl"] == 1


def test_opsm_leaves_regularisers_and_denominator():
    """A dropped sequence has no policy loss, but counts in the denominator."""
    config = trainer_config_of(opsm={"delta": 0.0}, entropy_coef=0.5)
    batch, x = random_batch(2, config)
    far = [torch.full_like(row, -9.0).requires_grad_() for row in x]
    negative = StepBatch([with_advantage(sample, -1.0) for sample in batch.samples], batch.extra)
    loss, metrics = train(negative, config, far, 100)
    assert metrics["opsm_clipfrac"] == 1 and metrics["tokens/rl"] == 20
    assert loss.item() == pytest.approx(-0.5)
    assert all(not gradient.any() for gradient in torch.autograd.grad(loss, far))


def with_advantage(sample: TrainingSample, value: float) -> TrainingSample:
    return msgspec.structs.replace(sample, advantages=np.full(len(sample.token_ids), value))


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_mini_batches_keep_groups_together(count):
    batch, _ = random_batch(3, trainer_config_of())
    parts = batch.mini_batches(count)
    groups = [{sample.group_id for sample in part.samples} for part in parts]
    assert len(parts) == min(count, 3) and set().union(*groups) == {"g0", "g1", "g2"}
    assert sum(map(len, groups)) == 3
    assert sum(part.normalisers.rl for part in parts) == batch.normalisers.rl
    for part in parts:
        for sample, old in zip(part.samples, part.extra["old_logprobs"], strict=True):
            index = next(i for i, other in enumerate(batch.samples) if other is sample)
            assert old is batch.extra["old_logprobs"][index]


def test_rollout_logprobs_take_the_place_of_old():
    config = trainer_config_of(use_rollout_log_probs=True)
    batch, x = random_batch(4, config)
    assert [row.tolist() for row in batch.extra["old_logprobs"]] == [
        sample.sampling_logprobs.tolist() for sample in batch.samples
    ]
    _, metrics = train(batch, config, x, 100)
    assert "is_approx_k3_kl" not in metrics, "sampler and old are the same"


def test_protections_report_each_environment():
    """Only one source has a token outside the trust region. It affects only that source's metric and the
    total."""
    config = trainer_config_of(m2po={}, is_correction={"action": "mask"})
    batch, _ = random_batch(6, trainer_config_of(), sizes=(3, 1))
    samples = [
        msgspec.structs.replace(sample, env=env)
        for sample, env in zip(batch.samples, ("near", "far"), strict=True)
    ]
    old = [samples[0].sampling_logprobs, samples[1].sampling_logprobs - stream([3])]
    _, metrics = prepare(samples, config, old)
    assert metrics["m2po_clip_ratio"].tolist() == metrics["is_clip_ratio"].tolist() == [1, 4]
    assert metrics["m2_before"].tolist() == [9, 4] and metrics["m2_after"].tolist() == [0, 3]
    for name in ("m2po_clip_ratio", "is_clip_ratio"):
        assert metrics[f"{name}/env/far"].tolist() == [1, 1]
        assert metrics[f"{name}/env/near"].tolist() == [0, 3]
    assert metrics["m2_before/env/far"].tolist() == [9, 1]
    assert metrics["m2_after/env/far"].tolist() == [0, 0]


def test_everything_masked_is_an_attached_zero():
    config = trainer_config_of(is_correction={"action": "mask", "lower_bound": 5, "upper_bound": 6})
    batch, x = random_batch(5, config)
    assert batch.normalisers.rl == 0
    loss, metrics = train(batch, config, x, 100)
    assert loss.item() == 0 and all(not part.any() for part in torch.autograd.grad(loss, x))
    assert all(np.isfinite(value) for value in metrics.values())
