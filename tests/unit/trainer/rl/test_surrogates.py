"""Clipped surrogates, custom losses and score centering compared with the worked cases."""

import pytest
import torch

from braidrl.configs.loss import CustomLossConfig, GRPOLossConfig, GSPOLossConfig, IcePopLossConfig
from braidrl.trainer.rl.loss import LossInputs
from braidrl.trainer.rl.losses import make_loss

PRECISIONS = [(torch.float64, 1e-9), (torch.float32, 1e-5)]
CONFIGS = {"grpo": GRPOLossConfig, "gspo": GSPOLossConfig}


def flat(rows: list[list], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor([float(value) for row in rows for value in row], dtype=dtype)


def owners(rows: list[list]) -> torch.Tensor:
    return torch.cat([torch.full((len(row),), index) for index, row in enumerate(rows)])


def surrogate_inputs(given: dict, dtype: torch.dtype, weights: torch.Tensor | None = None) -> LossInputs:
    x = flat(given["log_prob"], dtype)
    return LossInputs(
        trainer_logprobs=x.requires_grad_(),
        inference_logprobs=torch.full_like(x, torch.nan),
        ref_logprobs=None,
        advantages=flat(given["advantages"], dtype),
        loss_mask=flat(given["loss_masks"]).bool(),
        loss_weights=weights,
        old_logprobs=flat(given["old_log_prob"], dtype),
        sequence=owners(given["log_prob"]),
    )


def known(config: type, given: dict) -> dict:
    return {name: value for name, value in given["config"].items() if name in config.model_fields}


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_per_token_losses_and_metrics(worked_cases, name, dtype, tolerance):
    """With a weight of 1 on a single token, the loss is that of the token."""
    for case in worked_cases[f"policy_loss_{name}"]:
        given, expected = case["inputs"], case["expected"]
        loss, count = make_loss(CONFIGS[name](**known(CONFIGS[name], given))), len(owners(given["log_prob"]))
        found = torch.stack(
            [loss(surrogate_inputs(given, dtype, one)).loss for one in torch.eye(count, dtype=dtype)]
        )
        wanted = flat(expected["per_token_loss"], dtype)
        torch.testing.assert_close(found.detach(), wanted, rtol=tolerance, atol=max(tolerance, 1e-6))
        metrics = loss(surrogate_inputs(given, dtype)).metrics
        for key, value in expected["metrics_mean"].items():
            total, number = metrics[key].tolist()
            assert total / number == pytest.approx(value, rel=tolerance, abs=max(tolerance, 1e-6))


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_clipped_ppo_as_a_custom_loss(worked_cases, dtype, tolerance):
    """The loss is called once per sequence with members. Its metric is the mean over these calls."""
    config = CustomLossConfig(import_path="tests.support.custom_losses.ppo_clip_loss")
    for case in worked_cases["custom_loss_ppo_example"]:
        given, expected = case["inputs"], case["expected"]
        x = flat(given["trainer_logprobs"], dtype).requires_grad_()
        mask = flat(given["loss_mask"]).bool()
        inputs = LossInputs(
            x, flat(given["inference_logprobs"], dtype), None, flat(given["advantages"], dtype), mask, None
        )
        inputs.sequence = owners(given["trainer_logprobs"])
        outputs = make_loss(config.model_copy(update={"kwargs": {"clip_eps": given["clip_eps"]}}))(inputs)
        loss = outputs.loss / max(int(mask.sum()), 1)
        (gradient,) = torch.autograd.grad(loss, x)
        assert loss.item() == pytest.approx(expected["loss"], rel=tolerance, abs=tolerance)
        wanted = flat(expected["grad_trainer_logprobs"], dtype)
        torch.testing.assert_close(gradient, wanted, rtol=tolerance, atol=tolerance)
        total, calls = outputs.metrics["clip_frac"].tolist()
        assert total / calls == pytest.approx(
            expected["clip_frac_mean_over_nonempty_sequences"], rel=1e-6
        )  # the custom loss itself sums in float32


@pytest.mark.parametrize(
    ("import_path", "message"),
    [
        ("no_such_module.loss", "cannot be imported"),
        ("missing.py:loss", "cannot be imported"),
        ("tests.support.custom_losses.CLIP", "a callable is required"),
    ],
)
def test_a_custom_loss_that_is_not_there(import_path, message):
    with pytest.raises(ValueError, match=message):
        make_loss(CustomLossConfig(import_path=import_path))


def test_a_custom_loss_from_a_file_that_returns_nonsense(tmp_path):
    (tmp_path / "mine.py").write_text("def loss(inputs):\n    return inputs.trainer_logprobs.sum()\n")
    loss = make_loss(CustomLossConfig(import_path=f"{tmp_path}/mine.py:loss"))
    x = torch.zeros(2)
    with pytest.raises(TypeError, match=r"the loss mine.loss returned tensor.*return LossOutputs"):
        loss(LossInputs(x, x, None, x, x == 0, None))


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_score_centering_vectors(worked_cases, dtype, tolerance):
    """Score centering changes the gradient with respect to the logits, but not the value of the policy loss."""
    for case in worked_cases["icepop_score_centering"]:
        given, expected = case["inputs"], case["expected"]
        config = {name: value for name, value in given["config"].items() if name != "topk"}
        loss = make_loss(IcePopLossConfig(score_centering=True, **config))
        logits = torch.tensor([token["logits"] for token in given["tokens"]], dtype=dtype).requires_grad_()
        inputs = centering_inputs(given["tokens"], logits)
        outputs = loss(inputs)
        value = outputs.loss / (expected["n_rl"] or 1)
        (gradient,) = torch.autograd.grad(value, logits)
        assert value.item() == pytest.approx(expected["policy_loss"], rel=tolerance, abs=tolerance)
        wanted = torch.tensor([token["grad_logits"] for token in expected["tokens"]], dtype=dtype)
        torch.testing.assert_close(gradient, wanted, rtol=tolerance, atol=tolerance)
        members = [token for token, mine in zip(expected["tokens"], inputs.loss_mask, strict=True) if mine]
        for name in ("head_mass", "tail_scale", "logit_correction_l1"):
            total, count = outputs.metrics[f"score_centering/{name}"].tolist()
            assert count == len(members)
            assert total == pytest.approx(
                sum(token[name] for token in members), rel=10 * tolerance, abs=tolerance
            )


def centering_inputs(tokens: list[dict], logits: torch.Tensor) -> LossInputs:
    """Return inputs as in a packed row, with heads padded to the widest."""
    logp, width = logits.log_softmax(-1), max(len(token["head_ids"]) for token in tokens)
    pad = [[*token["head_ids"], *[-1] * (width - len(token["head_ids"]))] for token in tokens]
    ids = torch.tensor(pad, dtype=torch.long).reshape(len(tokens), width)
    mu = torch.full((len(tokens), width), -torch.inf, dtype=logits.dtype)
    for row, token in zip(mu, tokens, strict=True):
        values = [float(value) for value in token["head_inference_logprobs"]]
        row[: len(values)] = torch.tensor(values, dtype=logits.dtype)
    column = lambda name: torch.tensor([float(token[name]) for token in tokens], dtype=logits.dtype)
    sampled = torch.tensor([token["sampled"] for token in tokens])
    weights = column("rl_weight")
    return LossInputs(
        trainer_logprobs=logp.gather(-1, sampled[:, None])[:, 0],
        inference_logprobs=column("sampled_inference_logprob"),
        ref_logprobs=None,
        advantages=column("advantage"),
        loss_mask=(column("member") != 0) & (weights != 0),
        loss_weights=weights,
        head_trainer_logprobs=logp.gather(-1, ids.clamp_min(0)).masked_fill(ids < 0, 0),
        head_inference_logprobs=mu,
    )


def test_with_the_whole_vocabulary_as_head_centering_is_exact():
    """The update is w_a d log p_a minus its expectation, so its mean over the sampler's distribution is zero."""
    torch.manual_seed(0)
    logits = (0.3 * torch.randn(1, 5)).double().requires_grad_()
    q = (0.3 * torch.randn(1, 5)).double().log_softmax(-1)
    loss = make_loss(IcePopLossConfig(score_centering=True, ratio_low=0.7, ratio_high=1.3))
    logp = logits.log_softmax(-1).expand(5, 5)
    ratio = (logp - q).exp().detach()
    assert 0 < ((ratio > 1.3) | (ratio < 0.7)).sum() < 25, "some are rejected, some are not"
    inputs = LossInputs(
        trainer_logprobs=logp.diagonal(),
        inference_logprobs=q[0],
        ref_logprobs=None,
        advantages=torch.full((5,), 0.7).double(),
        loss_mask=torch.ones(5).bool(),
        loss_weights=q[0].exp(),
        head_trainer_logprobs=logp,
        head_inference_logprobs=q.expand(5, 5),
    )
    (gradient,) = torch.autograd.grad(loss(inputs).loss, logits)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


def test_a_sampler_that_is_the_policy_expects_no_update():
    """With a head of 2 of 5 tokens and a constant advantage, the expected update over all tokens is zero."""
    torch.manual_seed(1)
    logits = torch.randn(1, 5).double().requires_grad_()
    logp = logits.log_softmax(-1)
    best = logp[0].topk(2).indices.expand(5, 2)
    inputs = LossInputs(
        trainer_logprobs=logp[0],
        inference_logprobs=logp[0].detach(),
        ref_logprobs=None,
        advantages=torch.ones(5).double(),
        loss_mask=torch.ones(5).bool(),
        loss_weights=logp[0].detach().exp(),
        head_trainer_logprobs=logp.expand(5, 5).gather(-1, best),
        head_inference_logprobs=logp.detach().expand(5, 5).gather(-1, best),
    )
    (gradient,) = torch.autograd.grad(make_loss(IcePopLossConfig(score_centering=True))(inputs).loss, logits)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


def test_score_centering_without_heads_is_loud():
    x = torch.zeros(1)
    with pytest.raises(ValueError, match="needs the sampler's head"):
        make_loss(IcePopLossConfig(score_centering=True))(LossInputs(x, x, None, x, x == 0, None))
