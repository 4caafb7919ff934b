"""Field cases of losses (docs/field_cases.md), each with a minimal input."""

import itertools
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from braidrl.configs.loss import GRPOLossConfig
from braidrl.configs.trainer.offpolicy import ReferenceKLConfig
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.loss import LossInputs
from braidrl.trainer.rl.losses import make_loss
from braidrl.trainer.rl.objective import reference_kl
from braidrl.trainer.rl.preparation import prepare
from braidrl.trainer.rl.step import Learner
from braidrl.trainer.state.checkpoint import save_checkpoint
from braidrl.transport.types import TrainingSample
from braidrl.utils.run_folder import RunFolder
from tests.support.trainer_batches import make_batch, trainer_config
from tests.unit.trainer.rl.test_objective import STRIDE, train, trainer_config_of

ALONE = Parallel(0, 1, torch.device("cpu"))


def samples(rows: list[list[float]], mu: list[list[float]] | None = None, **streams) -> list[TrainingSample]:
    """Return one sample per row of advantages, each its own trajectory and group, with a prompt of one token."""
    return [
        TrainingSample(
            token_ids=(np.arange(len(row) + 1) + STRIDE * index).astype(np.int32),
            mask=np.arange(len(row) + 1) > 0,
            sampling_logprobs=np.array([0, *(mu[index] if mu else [-1.0] * len(row))]),
            advantages=np.array([0, *row], dtype=float),
            group_id=f"g{index}",
            trace_id=f"t{index}",
            **{name: stream[index] for name, stream in streams.items()},
        )
        for index, row in enumerate(rows)
    ]


def logprobs(rows: list[list[float]]) -> list[torch.Tensor]:
    return [torch.tensor([0.0, *row], dtype=torch.float64).requires_grad_() for row in rows]


CUTS = [(1000, 1), (1, 1), (1, 2), (3, 3)]
"""Maximum number of tokens per row, and number of ranks."""


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_the_entropy_bonus_is_normalised_as_the_loss(mode):
    """With entropy 1 at each of four tokens, the bonus equals its coefficient for every split."""
    config = trainer_config_of(entropy_coef=0.3, loss_agg_mode=mode)
    batch, _ = prepare(samples([[0], [0, 0, 0]]), config)
    for cut in CUTS:
        loss, _ = train(batch, config, logprobs([[-1], [-1, -1, -1]]), *cut)
        assert loss.item() == pytest.approx(-0.3, rel=1e-12)


def test_prompt_mean_is_one_value_for_every_split():
    """Two prompts with two rollouts each, lengths 1, 3, 2, 2, weights 1/4 within each prompt, and losses 1, 0, 2, 0."""
    weights = [np.r_[0, np.full(length, 0.25)] for length in (1, 3, 2, 2)]
    rows = [[-1.0], [0, 0, 0], [-2, -2], [0, 0]]
    config = trainer_config_of()
    batch, _ = prepare(samples(rows, rl_weights=weights), config)
    assert batch.normalisers.rl == 2
    for cut in CUTS:
        loss, _ = train(batch, config, logprobs([[-1.0] * len(row) for row in rows]), *cut)
        assert loss.item() == pytest.approx((1 / 4 + 4 / 4) / 2, rel=1e-12)


@pytest.mark.parametrize(("mode", "expected"), [("token-mean", -0.5), ("seq-mean-token-mean", -0.625)])
def test_a_masked_sequence_takes_its_own_tokens_alone(mode, expected):
    """Two sequences of lengths 1 and 3; one token of the second is out of range. With `token`, only this token is
    masked, and -1, -0.5 and 0 remain. With `sequence`, all three are masked. The policy equals `old`, so the loss of a
    token is -A."""
    mu, old = [[-1.0], [-1.0, -1, -1]], [[-1.0], [-3.0, -1, -1]]
    rows = [[1.0], [9.0, 0.5, 0.0]]
    token = trainer_config_of(is_correction={"action": "mask"}, loss_agg_mode=mode)
    sequence = trainer_config_of(is_correction={"action": "mask", "level": "sequence"}, loss_agg_mode=mode)
    before = [np.array([0, *row]) for row in old]
    batch, _ = prepare(samples(rows, mu), token, before)
    for cut in CUTS:
        loss, _ = train(batch, token, logprobs(old), *cut)
        assert loss.item() == pytest.approx(expected, rel=1e-12)
    batch, _ = prepare(samples(rows, mu), sequence, before)
    loss, metrics = train(batch, sequence, logprobs(old), 1, 2)
    assert loss.item() == pytest.approx(-1.0, rel=1e-12) and metrics["tokens/rl"] == 1


@pytest.mark.parametrize("parts", [1, 2])
def test_m2po_selects_over_the_whole_batch(parts):
    """M2PO masks the outlier. If it selected within micro batches or mini batches, the outlier would remain."""
    config = trainer_config_of(m2po={}, mini_batches=parts)
    old = [np.array([0, -3.0]), np.array([0, -1.0, -1.0, -1.1])]
    batch, metrics = prepare(samples([[1.0], [1, 1, 1]]), config, old)
    kept = [
        stream[1:].tolist() for part in batch.mini_batches(parts) for stream in part.extra["loss_weights"]
    ]
    assert kept == [[0], [1, 1, 1]]
    assert metrics["m2po_clip_ratio"].tolist() == [1, 4]
    with pytest.raises(ValueError, match="log-probs before the step"):
        prepare(samples([[1.0]]), config)


def test_the_dual_clip_bounds_negative_advantages_alone():
    def gain(advantage: float) -> float:
        x = torch.tensor([np.log(10.0)]).requires_grad_()
        zero = torch.zeros(1)
        inputs = LossInputs(x, zero, None, torch.tensor([advantage]), zero == 0, None, old_logprobs=zero)
        return -make_loss(GRPOLossConfig(clip_ratio_c=3))(inputs).loss.item()

    assert gain(-1) == pytest.approx(-3) and gain(1) == pytest.approx(1.28)
    with pytest.raises(ValidationError, match="clip_ratio_d"):
        trainer_config_of(loss={"type": "grpo", "clip_ratio_d": 3})


def test_the_second_mini_batch_is_compared_with_the_policy_before_the_step(tiny_model_dir, tmp_path):
    """The ratios of the first mini batch are 1. Before the second, the policy has changed."""
    options = {"loss": {"type": "grpo"}, "mini_batches": 2}
    learner = Learner.load(trainer_config(tiny_model_dir, tmp_path, **options), ALONE)
    batch, seen = make_batch(1, "rl"), []
    wrapped = learner.rl_loss.loss

    def spy(inputs: LossInputs):
        seen.append((inputs.trainer_logprobs.detach() - inputs.old_logprobs).abs().max().item())
        return wrapped(inputs)

    learner.rl_loss = type(learner.rl_loss)(spy)
    metrics = learner.step(1, batch)
    assert metrics["stepped"] == 2 and len(seen) == 2
    assert seen[0] < 1e-6 < 1e-3 < seen[1]


def test_the_unbiased_penalty_lowers_the_kl():
    """Gradient descent on the expected k3 with the ratio, enumerating three tokens."""
    torch.manual_seed(0)
    logits, ref = torch.randn(3).double().requires_grad_(), torch.randn(3).double().log_softmax(0)
    config = ReferenceKLConfig(path="r", use_unbiased_kl=True)
    exact = []
    for _ in range(100):
        x = logits.log_softmax(0)
        exact.append((x.exp() * (x - ref)).sum().item())
        (x.detach().exp() * reference_kl(x, ref, x.detach(), config)).sum().backward()
        with torch.no_grad():
            logits -= 0.5 * logits.grad
        logits.grad = None
    assert all(later < earlier for earlier, later in itertools.pairwise(exact))
    assert exact[-1] < exact[0] / 4


def test_the_reference_is_refreshed_after_the_steps_that_are_due(worked_cases, tiny_model_dir, tmp_path):
    for case in worked_cases["ref_refresh"]:
        interval, steps = case["inputs"]["update_interval"], case["inputs"]["n_steps"]
        reference = {"path": str(tiny_model_dir), "update_interval": interval}
        learner = Learner.load(trainer_config(tiny_model_dir, tmp_path, reference_kl=reference), ALONE)
        learner.reference.copy_ = spy = mock.Mock()
        refreshed = []
        for step in range(1, steps + 1):
            before = spy.call_count
            learner._refresh_reference(step)
            refreshed += [step] * (spy.call_count - before)
        assert refreshed == case["expected"]["refresh_after_steps"]
        assert (learner.moving_reference is None) == (interval == 0)


def test_a_reference_from_a_checkpoint_or_a_folder_and_from_neither(tiny_model_dir: Path, tmp_path: Path):
    first = Learner.load(trainer_config(tiny_model_dir, tmp_path), ALONE)
    first.step(1, make_batch(1, "rl"))
    run = RunFolder(tmp_path)
    save_checkpoint(run.trainer_checkpoint(1), first.model, first.optimizer, 1, ALONE)
    path = str(run.trainer_checkpoint(1).parent)
    options = {"reference_kl": {"path": path, "coef": 1.0, "kl_type": "k2"}}
    second = Learner.load(trainer_config(tiny_model_dir, tmp_path / "b", **options), ALONE)
    for mine, its in zip(second.reference.parameters(), first.policy.parameters(), strict=True):
        assert torch.equal(mine, its) and not mine.requires_grad
    metrics = second.step(1, make_batch(1, "rl"))
    assert metrics["reference_kl"] > 0
    with pytest.raises(FileNotFoundError, match=r"holds neither config.json .* nor"):
        Learner.load(
            trainer_config(tiny_model_dir, tmp_path, reference_kl={"path": str(tmp_path / "no")}), ALONE
        )


@pytest.mark.parametrize("loss", ["ipo", "icepop", "grpo", "gspo"])
def test_one_token_sequences_and_values_that_are_not_finite(loss):
    """Tokens with a sampler log-prob of -inf or NaN are excluded and counted, and no result is NaN."""
    mu = [[-1.0], [-np.inf], [np.nan], [-90.0]]
    config = trainer_config_of(loss={"type": loss})
    batch, _ = prepare(samples([[1.0]] * 4, mu), config)
    x = logprobs([[-1.0]] * 4)
    loss_value, metrics = train(batch, config, x, 1, 2)
    gradient = torch.autograd.grad(loss_value, x)
    assert torch.isfinite(loss_value) and all(part.isfinite().all() for part in gradient)
    assert all(np.isfinite(value) for value in metrics.values())


def test_an_empty_batch_has_no_step_with_any_protection(tiny_model_dir, tmp_path):
    options = {
        "loss": {"type": "grpo"},
        "loss_agg_mode": "seq-mean-token-mean",
        "m2po": {},
        "is_correction": {},
    }
    reference = {"reference_kl": {"path": str(tiny_model_dir)}}
    learner = Learner.load(trainer_config(tiny_model_dir, tmp_path, **options, **reference), ALONE)
    assert learner.step(1, [])["stepped"] == 0


@pytest.mark.parametrize("loss", ["ipo", "grpo", "custom"])
def test_a_bad_sampler_logprob_spoils_no_regulariser(tiny_model_dir, tmp_path, loss):
    """If the sampler's log-probs are used as `old`, the unbiased KL uses them as well."""
    block = {"type": loss}
    if loss == "custom":
        block["import_path"] = "tests.support.custom_losses.ppo_clip_loss"
    reference = {"path": str(tiny_model_dir), "use_unbiased_kl": True}
    config = trainer_config(
        tiny_model_dir, tmp_path, loss=block, use_rollout_log_probs=True, reference_kl=reference
    )
    batch = make_batch(1, "rl")
    batch[1].sampling_logprobs[np.flatnonzero(batch[1].mask)[0]] = np.nan
    metrics = Learner.load(config, ALONE).step(1, batch)
    assert metrics["stepped"] == 1 and all(np.isfinite(value) for value in metrics.values())
    assert metrics["nan_ratio" if loss == "grpo" else "nonfinite_tokens"] > 0
