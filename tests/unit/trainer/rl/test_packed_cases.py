"""The worked cases of every loss on the path of training: samples are prepared, packed over rows and ranks, and
summed."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from braidrl.configs.trainer.config import TrainerConfig
from braidrl.trainer.model.forward import DeviceMicroBatch, TokenOutputs, to_device
from braidrl.trainer.rl.components import component_loss, reduce_metrics
from braidrl.trainer.rl.objective import RLObjective
from braidrl.trainer.rl.preparation import prepare
from braidrl.transport.types import TrainingSample

STRIDE = 1000
"""Token ids are STRIDE * sample + position."""
PRECISIONS = [(np.float64, 1e-9), (np.float32, 1e-5)]
CUTS = [(1, 1), (1000, 1), (12, 2), (1, 3)]
"""Maximum number of tokens per row, and number of ranks."""

precise = pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
cut = pytest.mark.parametrize(("max_tokens", "world_size"), CUTS)


def stream(row: list, dtype: type) -> np.ndarray:
    """Return a stream with a prompt of one token in front."""
    return np.array([0, *map(float, row)], dtype)


def samples_of(dtype: type, mask: list[list], mu: list[list], **streams: list[list]) -> list[TrainingSample]:
    return [
        TrainingSample(
            token_ids=(np.arange(len(row) + 1) + STRIDE * index).astype(np.int32),
            mask=stream(row, bool),
            sampling_logprobs=stream(mu[index], dtype),
            trace_id=f"t{index}",
            **{name: stream(rows[index], dtype) for name, rows in streams.items()},
        )
        for index, row in enumerate(mask)
    ]


def train(
    samples: list[TrainingSample],
    loss: dict,
    policy: Callable[[DeviceMicroBatch], TokenOutputs],
    max_tokens: int,
    world_size: int,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return loss and metrics of the whole batch, summed as in a step on `world_size` ranks."""
    config = TrainerConfig.model_validate({"model": {"path": "m"}, "loss": loss})
    objective, total, sums = RLObjective.of(config), torch.zeros(()), {}
    batch, _ = prepare(samples, config)
    for rank in range(world_size):
        for row in batch.pack(max_tokens, rank, world_size):
            micro = to_device(row, "cpu")
            part, metrics = component_loss(policy(micro), micro, objective, batch.normalisers)
            total = total + part
            sums |= {name: pair + sums.get(name, 0) for name, pair in metrics.items()}
    return total, reduce_metrics(sums)


def check(
    samples: list[TrainingSample],
    given: dict,
    loss: dict,
    expected: tuple[float, list[list]],
    tolerance: float,
    **cut: int,
) -> dict[str, float]:
    """Assert value and gradient for a policy with the log-probs `trainer_logprobs`. Return the metrics."""
    dtype = samples[0].sampling_logprobs.dtype.type
    x = [torch.from_numpy(stream(row, dtype)).requires_grad_() for row in given["trainer_logprobs"]]
    padded = torch.nn.utils.rnn.pad_sequence(x, batch_first=True)

    def policy(micro: DeviceMicroBatch) -> TokenOutputs:
        logprobs = padded[micro.sample_index, micro.targets % STRIDE]
        return TokenOutputs(logprobs, torch.ones_like(logprobs))

    value, metrics = train(samples, loss, policy, **cut)
    gradient = torch.cat([part[1:] for part in torch.autograd.grad(value, x)])
    assert value.item() == pytest.approx(expected[0], rel=tolerance, abs=tolerance)
    wanted = torch.tensor([number for row in expected[1] for number in row], dtype=gradient.dtype)
    torch.testing.assert_close(gradient, wanted, rtol=tolerance, atol=tolerance)
    return metrics


@cut
@precise
@pytest.mark.parametrize("item", ["ipo_loss", "icepop_loss", "nonfinite_members"])
def test_trust_regions(worked_cases, item, dtype, tolerance, max_tokens, world_size):
    for case in worked_cases[item]:
        given, expected = case["inputs"], case["expected"]
        loss = {"type": given.get("rl_loss") or item.removesuffix("_loss"), **given.get("config", {})}
        weights = {"rl_weights": given["rl_weights"]} if given.get("rl_weights") else {}
        samples = samples_of(
            dtype, given["loss_mask"], given["inference_logprobs"], advantages=given["advantages"], **weights
        )
        target = (expected["loss"], expected["grad_trainer_logprobs"])
        check(samples, given, loss, target, tolerance, max_tokens=max_tokens, world_size=world_size)


@cut
@precise
def test_ref_kl(worked_cases, dtype, tolerance, max_tokens, world_size):
    for case in worked_cases["ref_kl_loss"]:
        given, expected = case["inputs"], case["expected"]
        nothing = [[0.0] * len(row) for row in given["ref_kl_weights"]]
        streams = {name: given[name] for name in ("ref_logprobs", "ref_kl_weights")}
        everything = [[1] * len(row) for row in nothing]
        samples = samples_of(dtype, everything, given["inference_logprobs"], rl_weights=nothing, **streams)
        target = (expected["loss"], expected["grad_trainer_logprobs"])
        cuts = {"max_tokens": max_tokens, "world_size": world_size}
        check(samples, given, {"type": "ipo"}, target, tolerance, **cuts)


@cut
@precise
def test_ce(worked_cases, dtype, tolerance, max_tokens, world_size):
    """Tokens that were not sampled."""
    for case in worked_cases["ce_loss"]:
        given, expected = case["inputs"], case["expected"]
        nothing = [[0.0] * len(row) for row in given["ce_weights"]]
        samples = samples_of(dtype, nothing, nothing, ce_weights=given["ce_weights"])
        target = (expected["loss"], expected["grad_trainer_logprobs"])
        cuts = {"max_tokens": max_tokens, "world_size": world_size}
        check(samples, given, {"type": "ipo"}, target, tolerance, **cuts)


@cut
@precise
def test_custom(worked_cases, dtype, tolerance, max_tokens, world_size):
    for case in worked_cases["custom_loss_ppo_example"]:
        given, expected = case["inputs"], case["expected"]
        kwargs = {"clip_eps": given["clip_eps"]}
        loss = {
            "type": "custom",
            "import_path": "tests.support.custom_losses.ppo_clip_loss",
            "kwargs": kwargs,
        }
        samples = samples_of(
            dtype, given["loss_mask"], given["inference_logprobs"], advantages=given["advantages"]
        )
        target = (expected["loss"], expected["grad_trainer_logprobs"])
        cuts = {"max_tokens": max_tokens, "world_size": world_size}
        metrics = check(samples, given, loss, target, tolerance, **cuts)
        # the custom loss itself sums in float32
        assert metrics["clip_frac"] == pytest.approx(
            expected["clip_frac_mean_over_nonempty_sequences"], rel=1e-6
        )


@cut
@precise
def test_prompt_mean(worked_cases, dtype, tolerance, max_tokens, world_size):
    for case in worked_cases["prompt_mean"]:
        groups, expected = case["inputs"]["groups"], case["expected"]
        joined = {name: [row for group in groups for row in group[name]] for name in groups[0]}
        samples = samples_of(
            dtype,
            joined["loss_mask"],
            joined["inference_logprobs"],
            advantages=expected["advantages_flat"],
            rl_weights=expected["rl_weights_flat"],
        )
        target = (expected["loss"], expected["grad_trainer_logprobs_flat"])
        cuts = {"max_tokens": max_tokens, "world_size": world_size}
        metrics = check(samples, joined, {"type": "ipo", "eps": 0.3}, target, tolerance, **cuts)
        assert metrics["tokens/rl"] == sum(np.count_nonzero(row) for row in expected["rl_weights_flat"])


@cut
@precise
def test_score_centering(worked_cases, dtype, tolerance, max_tokens, world_size):
    """Every token is a separate sample. Sampled tokens have heads."""
    for case in worked_cases["icepop_score_centering"]:
        given, expected = case["inputs"], case["expected"]
        tokens, config = given["tokens"], {**given["config"]}
        config |= {"score_centering": True, "score_centering_topk": config.pop("topk")}
        logits = torch.tensor(np.array([token["logits"] for token in tokens], dtype)).requires_grad_()
        logp, sampled = logits.log_softmax(-1), torch.tensor([token["sampled"] for token in tokens])

        def policy(micro: DeviceMicroBatch) -> TokenOutputs:
            here = logp[micro.sample_index]  # noqa: B023 (called at once)
            chosen = sampled[micro.sample_index]  # noqa: B023
            heads = here.gather(-1, micro.head_ids.clamp_min(0)).masked_fill(micro.head_ids < 0, 0)
            return TokenOutputs(here.gather(-1, chosen[:, None])[:, 0], here.detach()[:, 0], heads)

        samples = [centered_sample(index, token, dtype) for index, token in enumerate(tokens)]
        value, metrics = train(samples, {"type": "icepop", **config}, policy, max_tokens, world_size)
        (gradient,) = torch.autograd.grad(value, logits)
        assert metrics["pg_loss"] == pytest.approx(expected["policy_loss"], rel=tolerance, abs=tolerance)
        wanted = torch.tensor(np.array([token["grad_logits"] for token in expected["tokens"]], dtype))
        torch.testing.assert_close(gradient, wanted, rtol=tolerance, atol=tolerance)


def centered_sample(index: int, token: dict, dtype: type) -> TrainingSample:
    member = bool(token["member"])
    width = len(token["head_ids"])
    return TrainingSample(
        token_ids=np.array([STRIDE * index, STRIDE * index + 1], np.int32),
        mask=np.array([False, member]),
        sampling_logprobs=stream([token["sampled_inference_logprob"]], dtype),
        advantages=stream([token["advantage"]], dtype),
        rl_weights=stream([token["rl_weight"]], dtype),
        head_ids=np.array(token["head_ids"], np.int32).reshape(1, width)[: int(member)],
        head_logprobs=np.array([float(v) for v in token["head_inference_logprobs"]], dtype).reshape(1, width)[
            : int(member)
        ],
        trace_id=f"t{index}",
    )
