"""Off-policy protections, regularisers and aggregation compared with the worked cases. Extreme values stay finite."""

import pytest
import torch

from braidrl.configs.loss import GRPOLossConfig, GSPOLossConfig, IcePopLossConfig, IPOLossConfig
from braidrl.configs.trainer.offpolicy import ISCorrectionConfig, M2POConfig, OPSMConfig, ReferenceKLConfig
from braidrl.trainer.rl.loss import LossInputs, mismatch_kl
from braidrl.trainer.rl.losses import make_loss
from braidrl.trainer.rl.losses.ref_kl import ref_kl_loss
from braidrl.trainer.rl.objective import reference_kl
from braidrl.trainer.rl.offpolicy import is_correction, m2po, opsm
from braidrl.trainer.rl.preparation import aggregation_weights

PRECISIONS = [(torch.float64, 1e-9), (torch.float32, 1e-5)]


def flat(rows: list[list], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor([float(value) for row in rows for value in row], dtype=dtype)


def owners(rows: list[list]) -> torch.Tensor:
    return torch.cat([torch.full((len(row),), index) for index, row in enumerate(rows)])


def ratio(pair: torch.Tensor) -> float:
    total, count = pair.tolist()
    return total / (count or 1)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_is_correction_vectors(worked_cases, dtype, tolerance):
    for case in worked_cases["is_correction"]:
        given, expected = case["inputs"], case["expected"]
        valid = flat(given["loss_masks"]).bool()
        old, mu = (flat(given[f"{name}_log_probs"], dtype)[valid] for name in ("old", "rollout"))
        config = {name: given[name] for name in ISCorrectionConfig.model_fields}
        sequence = owners(given["loss_masks"])[valid]
        weights, keep, metrics = is_correction(old, mu, sequence, ISCorrectionConfig(**config))
        assert keep.tolist() == flat(expected["masks"])[valid].bool().tolist()
        wanted = flat(expected["weights"], dtype)[valid]
        torch.testing.assert_close(weights[keep], wanted[keep], rtol=tolerance, atol=tolerance)
        metrics["is_approx_k3_kl"] = mismatch_kl(old - mu)
        for name, value in expected.get("metrics", {}).items():
            assert metrics[name].mean().item() == pytest.approx(value, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("action", ["clip", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_is_correction_of_what_is_not_finite(level, action):
    old = torch.tensor([-1.0, torch.nan, -torch.inf, -2.0])
    mu = torch.tensor([-1.0, -1.0, -1.0, -2.1])
    weights, keep, metrics = is_correction(
        old, mu, torch.tensor([0, 0, 1, 1]), ISCorrectionConfig(level=level, action=action)
    )
    assert weights.isfinite().all() and weights[1:3].tolist() == [0, 0] and keep.all()
    assert weights[[0, 3]].tolist() == pytest.approx([1, torch.tensor(0.1).exp().item()])
    assert metrics["is_nan_ratio"].tolist() == [0, 1, 1, 0] and not metrics["is_clip_ratio"].any()


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_m2po_vectors(worked_cases, dtype, tolerance):
    for case in worked_cases["m2po"]:
        given, expected = case["inputs"], case["expected"]
        valid = flat(given["loss_masks"]).bool()
        old, mu = (flat(given[f"{name}_log_probs"], dtype)[valid] for name in ("old", "rollout"))
        keep, metrics = m2po(old, mu, M2POConfig(threshold=given["threshold"]))
        assert keep.tolist() == flat(expected["masks"])[valid].bool().tolist()
        for name, value in expected["metrics"].items():
            counted = metrics[name][~metrics[name].isnan()]
            assert counted.sum().item() / (len(counted) or 1) == pytest.approx(
                value, rel=10 * tolerance, abs=tolerance
            )


def test_m2po_takes_what_is_not_finite_first():
    old, mu = torch.tensor([torch.nan, -1.0, -torch.inf, -3.0]), torch.tensor([-1.0, -1.0, -1.0, -1.0])
    keep, metrics = m2po(old, mu, M2POConfig())
    assert keep.tolist() == [False, True, False, False]
    assert {name: values.nanmean().item() for name, values in metrics.items()} == {
        "m2_before": 2.0,
        "m2_after": 0.0,
        "m2po_clip_ratio": 0.75,
    }


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_opsm_vectors(worked_cases, dtype, tolerance):
    for case in worked_cases["opsm"]:
        given, expected = case["inputs"], case["expected"]
        valid = flat(given["loss_masks"]).bool()
        x, old, advantages = (
            flat(given[name], dtype)[valid] for name in ("log_probs", "old_log_probs", "advantages")
        )
        sequence = owners(given["loss_masks"])[valid]
        keep, metrics = opsm(x, old, advantages, sequence, OPSMConfig(delta=given["delta"]))
        assert keep.tolist() == flat(expected["keep"])[valid].bool().tolist()
        for name, value in expected["metrics"].items():
            assert ratio(metrics[name]) == pytest.approx(value, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_reference_kl_vectors(worked_cases, dtype, tolerance):
    for case in worked_cases["reference_kl"]:
        given, expected = case["inputs"], case["expected"]
        valid = flat(given["loss_masks"]).bool()
        x = flat(given["log_prob"], dtype).requires_grad_()
        ref, old = (flat(given[f"{name}_log_prob"], dtype)[valid] for name in ("ref", "old"))
        config = ReferenceKLConfig(
            path="r", kl_type=given["kl_type"], use_unbiased_kl=given["use_unbiased_kl"]
        )
        kl = reference_kl(x[valid], ref, old, config)
        wanted = flat(expected["per_token_kl"], dtype)[valid]
        torch.testing.assert_close(kl.detach(), wanted, rtol=tolerance, atol=tolerance)
        for mode, aggregate in expected["aggregate"].items():
            weights = aggregation_weights(torch.ones_like(ref), owners(given["log_prob"])[valid], mode)
            loss = (weights * kl).sum() / weights.sum()
            (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
            assert loss.item() == pytest.approx(aggregate["loss"], rel=tolerance, abs=tolerance)
            torch.testing.assert_close(
                gradient, flat(aggregate["grad_log_prob"], dtype), rtol=tolerance, atol=tolerance
            )


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_aggregated_surrogates(worked_cases, name):
    configs = {"grpo": GRPOLossConfig, "gspo": GSPOLossConfig}
    for case in worked_cases[f"policy_loss_{name}"]:
        given = case["inputs"]
        valid = flat(given["loss_masks"]).bool()
        config = {key: given["config"][key] for key in configs[name].model_fields if key != "type"}
        for mode, expected in case["expected"]["aggregate"].items():
            x = flat(given["log_prob"]).requires_grad_()
            weights = torch.zeros(len(x)).double()
            weights[valid] = aggregation_weights(
                torch.ones(int(valid.sum())).double(), owners(given["log_prob"])[valid], mode
            )
            nothing = torch.full_like(weights, torch.nan)
            inputs = LossInputs(
                *(x, nothing, None, flat(given["advantages"]), valid, weights),
                old_logprobs=flat(given["old_log_prob"]),
                sequence=owners(given["log_prob"]),
            )
            loss = make_loss(configs[name](**config))(inputs).loss / (weights.sum() or 1)
            (gradient,) = torch.autograd.grad(loss, x)
            assert loss.item() == pytest.approx(expected["loss"], rel=1e-9, abs=1e-6)
            torch.testing.assert_close(gradient, flat(expected["grad_log_prob"]), rtol=1e-9, atol=1e-6)


def test_aggregation_vectors(worked_cases):
    """Sums of numerators and denominators over the parts give the mean."""
    for case in worked_cases["aggregation"]:
        given, expected = case["inputs"], case["expected"]
        for split, wanted in zip(given["splits"], expected["parts"], strict=True):
            sums = []
            for part in split:
                rows = [given["values"][index] for index in part]
                valid = flat([given["loss_masks"][index] for index in part]).bool()
                values = flat(rows)[valid]
                owner = owners(rows)[valid] if rows else torch.zeros(0, dtype=torch.long)
                weights = aggregation_weights(torch.ones_like(values), owner, given["mode"])
                sums.append([(weights * values).sum().item(), weights.sum().item()])
            assert sums == [pytest.approx(pair, rel=1e-9, abs=1e-9) for pair in wanted]
            total, count = map(sum, zip(*sums, strict=True))
            assert total / (count or 1) == pytest.approx(expected["mean"], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_extreme_inputs_stay_finite(worked_cases, dtype):
    losses = {
        "ipo": make_loss(IPOLossConfig()),
        "icepop": make_loss(IcePopLossConfig()),
        "ref_kl": ref_kl_loss,
        "policy_loss_grpo": make_loss(GRPOLossConfig()),
        "policy_loss_gspo": make_loss(GSPOLossConfig()),
    }
    seen = set()
    for case in worked_cases["must_be_finite"]:
        given = case["inputs"]
        seen.add(name := given["function"])
        x = flat(given["trainer_logprobs"], dtype).requires_grad_()
        other, ref, advantages = (
            flat(given[key], dtype) for key in ("other_logprobs", "ref_logprobs", "advantages")
        )
        mask = flat(given["loss_mask"]).bool()
        metrics = {}
        if name in losses:
            outputs = losses[name](
                LossInputs(x, other, ref, advantages, mask, None, other, owners(given["loss_mask"]))
            )
            value, metrics = outputs.loss, outputs.metrics
        elif name.startswith("reference_kl"):
            config = ReferenceKLConfig(path="r", use_unbiased_kl=name.endswith("unbiased"))
            value = reference_kl(x[mask], ref[mask], other[mask], config).sum()
        else:
            sequence = owners(given["loss_mask"])[mask]
            weights, _, metrics = is_correction(
                x.detach()[mask], other[mask], sequence, ISCorrectionConfig(level="sequence")
            )
            value = (x[mask] * weights).sum()
        (gradient,) = torch.autograd.grad(value, x)
        assert value.isfinite() and gradient.isfinite().all(), name
        assert all(metric.isfinite().all() for metric in metrics.values())
    assert seen == {*losses, "reference_kl_k3", "reference_kl_k3_unbiased", "is_correction_sequence"}


def test_expected_gradients_of_the_kl_estimates_on_three_tokens():
    """Expected gradients, with each token weighted by its probability under old = policy: k2 and unbiased k1 and k3
    give that of the exact KL(policy || reference), plain k1 gives zero, and plain k3 that of the forward KL."""
    torch.manual_seed(3)
    logits, ref = torch.randn(3).double().requires_grad_(), torch.randn(3).double().log_softmax(0)
    x = logits.log_softmax(0)
    p = x.detach().exp()
    exact = torch.autograd.grad((x.exp() * (x - ref)).sum(), logits, retain_graph=True)[0]
    forward = torch.autograd.grad((ref.exp() * (ref - x)).sum(), logits, retain_graph=True)[0]
    wanted = {("k1", False): 0 * exact, ("k2", False): exact, ("k3", False): forward}
    wanted |= {("k1", True): exact, ("k3", True): exact}
    for (kl_type, unbiased), gradient in wanted.items():
        config = ReferenceKLConfig(path="r", kl_type=kl_type, use_unbiased_kl=unbiased)
        expected = (p * reference_kl(x, ref, x.detach(), config)).sum()
        found = torch.autograd.grad(expected, logits, retain_graph=True)[0]
        torch.testing.assert_close(found, gradient, rtol=1e-9, atol=1e-12)
    biased = ReferenceKLConfig(path="r", kl_type="k2", use_unbiased_kl=True)
    found = torch.autograd.grad((p * reference_kl(x, ref, x.detach(), biased)).sum(), logits)[0]
    assert (found - exact).abs().max() > 1e-3, "k2 with the ratio keeps ratio * D^2 / 2"
