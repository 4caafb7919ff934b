"""Losses compared with the worked cases: values, gradients and masks, in float64 and float32."""

import pytest
import torch
from pydantic import TypeAdapter

from braidrl.configs.loss import CustomLossConfig, IcePopLossConfig, IPOLossConfig, LossConfig
from braidrl.trainer.rl.loss import LossInputs, mismatch_kl
from braidrl.trainer.rl.losses import LOSS_FUNCTIONS, make_loss
from braidrl.trainer.rl.losses.ce import ce_loss
from braidrl.trainer.rl.losses.ref_kl import ref_kl_loss

TRUST_REGIONS = {"ipo": IPOLossConfig, "icepop": IcePopLossConfig}
PRECISIONS = [(torch.float64, 1e-9), (torch.float32, 1e-5)]


def flat(rows: list[list], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return the concatenated sequences as a tensor. `nan`, `inf` and `-inf` are strings."""
    return torch.tensor([float(value) for row in rows for value in row], dtype=dtype)


def split(values: torch.Tensor, rows: list[list]) -> list[torch.Tensor]:
    return list(values.split([len(row) for row in rows]))


def check(loss, inputs: LossInputs, rows: list[list], denominator: float, expected: dict, tolerance: float):
    """Packed sequences and the sum over single sequences give the expected value and gradient."""
    wanted = flat(expected["grad_trainer_logprobs"], inputs.trainer_logprobs.dtype)
    pieces = {
        name: [None] * len(rows) if value is None else split(value, rows)
        for name, value in vars(inputs).items()
    }
    single = [LossInputs(*values) for values in zip(*pieces.values(), strict=True)]
    for calls in ([inputs], single):
        total = sum(loss(call).loss for call in calls) / (denominator or 1)
        (gradient,) = torch.autograd.grad(total, inputs.trainer_logprobs, retain_graph=True)
        assert total.item() == pytest.approx(expected["loss"], rel=tolerance, abs=tolerance)
        torch.testing.assert_close(gradient, wanted, rtol=tolerance, atol=tolerance)


def ipo_inputs(given: dict, dtype: torch.dtype) -> LossInputs:
    weights = given.get("rl_weights")
    return LossInputs(
        trainer_logprobs=flat(given["trainer_logprobs"], dtype).requires_grad_(),
        inference_logprobs=flat(given["inference_logprobs"], dtype),
        ref_logprobs=None,
        advantages=flat(given["advantages"], dtype),
        loss_mask=flat(given["loss_mask"]).bool() & (flat(weights) != 0 if weights else True),
        loss_weights=flat(weights, dtype) if weights else None,
    )


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("item", ["ipo_loss", "icepop_loss", "nonfinite_members"])
def test_trust_region_vectors(worked_cases, item, dtype, tolerance):
    for case in worked_cases[item]:
        given, expected = case["inputs"], case["expected"]
        config = TRUST_REGIONS[given.get("rl_loss") or item.removesuffix("_loss")](**given.get("config", {}))
        inputs, rows = ipo_inputs(given, dtype), given["trainer_logprobs"]
        loss = make_loss(config)
        check(loss, inputs, rows, expected["n_rl"], expected, tolerance)
        member, accepted = inputs.loss_mask, flat(expected["accepted"]).bool()
        metrics = loss(inputs).metrics
        assert metrics["is_masked"].tolist() == [(member & ~accepted).sum(), member.sum()]
        bad = ~(inputs.trainer_logprobs.isfinite() & inputs.inference_logprobs.isfinite())
        assert metrics["nonfinite_tokens"].tolist() == [(bad & member).sum(), 0]


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_ref_kl_vectors(worked_cases, dtype, tolerance):
    for case in worked_cases["ref_kl_loss"]:
        given, expected = case["inputs"], case["expected"]
        weights = flat(given["ref_kl_weights"], dtype)
        x, mu, ref = (flat(given[f"{name}_logprobs"], dtype) for name in ("trainer", "inference", "ref"))
        inputs = LossInputs(
            x.requires_grad_(), mu, ref, torch.full_like(mu, torch.nan), weights != 0, weights
        )
        check(ref_kl_loss, inputs, given["trainer_logprobs"], expected["n_ref_kl"], expected, tolerance)
        rejected = (weights != 0) & ~flat(expected["accepted"]).bool()
        metrics = ref_kl_loss(inputs).metrics
        assert metrics["ref_kl/is_masked"].tolist() == [rejected.sum(), expected["n_ref_kl"]]


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_ce_vectors(worked_cases, dtype, tolerance):
    for case in worked_cases["ce_loss"]:
        given, expected = case["inputs"], case["expected"]
        weights = flat(given["ce_weights"], dtype)
        x, nothing = (
            flat(given["trainer_logprobs"], dtype).requires_grad_(),
            torch.full_like(weights, torch.nan),
        )
        inputs = LossInputs(x, nothing, None, nothing, weights != 0, weights)
        check(ce_loss, inputs, given["trainer_logprobs"], expected["n_ce"], expected, tolerance)
        nll = ce_loss(inputs).metrics["nll"]
        assert nll[0] / nll[1] == pytest.approx(-x[weights != 0].mean().item(), rel=tolerance)


def test_a_masked_token_may_hold_anything():
    """exp(-2 + 91) overflows float32. The token is not a member, so it must affect neither value nor gradient."""
    x = torch.tensor([-2.0, -1.0], requires_grad=True)
    inputs = LossInputs(
        x, torch.tensor([-91.0, -1.0]), None, torch.ones(2), torch.tensor([False, True]), None
    )
    loss = make_loss(IPOLossConfig())(inputs).loss
    loss.backward()
    assert (loss.item(), x.grad.tolist()) == (-1.0, [0.0, -1.0])


def test_the_ratio_cap_passes_the_gradient_through():
    x = torch.tensor([-1.5], requires_grad=True, dtype=torch.float64)
    inputs = LossInputs(x, torch.tensor([-100.0]).double(), None, torch.ones(1), torch.ones(1).bool(), None)
    outputs = make_loss(IPOLossConfig(eps=1.0))(inputs)
    outputs.loss.backward()
    cap = torch.exp(torch.tensor(20.0).double()).item()
    assert -outputs.loss.item() == pytest.approx(cap) == pytest.approx(-x.grad.item())
    assert outputs.metrics["ratio_capped"].tolist() == [1, 0]


def test_ipo_metrics():
    """Four members: probability too low, too high, accepted, and not finite."""
    x = torch.tensor([0.1, 0.9, 0.5, torch.nan]).log().requires_grad_()
    mu = torch.tensor([0.9, 0.1, 0.4, 0.5]).log()
    metrics = make_loss(IPOLossConfig())(
        LossInputs(x, mu, None, torch.ones(4), torch.ones(4).bool(), None)
    ).metrics
    assert metrics["is_masked"].tolist() == [3, 4]
    assert metrics["is_masked_low"].tolist() == metrics["is_masked_high"].tolist() == [1, 4]
    k3 = mismatch_kl((x - mu).detach())
    torch.testing.assert_close(metrics["masked_mismatch_kl"], torch.tensor([k3[:2].sum(), 2]))
    torch.testing.assert_close(metrics["unmasked_mismatch_kl"], torch.tensor([k3[2], 1]))


def test_a_boundary_token_is_kept():
    """The bound is inclusive: eps 0 accepts a token whose probability has not changed."""
    x = torch.tensor([-1.0, -2.0], requires_grad=True)
    inputs = LossInputs(x, torch.tensor([-1.0, -2.1]), None, torch.ones(2), torch.ones(2).bool(), None)
    assert make_loss(IPOLossConfig(eps=0))(inputs).loss.item() == -1.0


def test_ref_kl_without_a_reference_is_an_error():
    x = torch.zeros(1)
    with pytest.raises(ValueError, match="needs ref_logprobs"):
        ref_kl_loss(LossInputs(x, x, None, x, x == 0, None))


def test_every_configured_loss_is_made():
    schema = TypeAdapter(LossConfig).json_schema()["discriminator"]["mapping"]
    assert set(LOSS_FUNCTIONS) == set(schema)
    config = CustomLossConfig(import_path="braidrl.trainer.rl.losses.ce.ce_loss")
    x = torch.tensor([-1.0, -2.0], requires_grad=True)
    inputs = LossInputs(x, x.detach(), None, torch.ones(2), torch.tensor([True, False]), None)
    assert make_loss(config)(inputs).loss.item() == 1.0


def test_a_nonfinite_ce_member_is_loud():
    x = torch.tensor([torch.nan, -1.0], requires_grad=True)
    assert ce_loss(LossInputs(x, x.detach(), None, x.detach(), torch.ones(2).bool(), None)).loss.isnan()
