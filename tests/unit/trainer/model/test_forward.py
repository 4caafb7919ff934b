"""The packed forward on real tiny models, compared with one plain transformers forward per sample.

Gradients do not depend on packing.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from braidrl.configs.loss import IPOLossConfig
from braidrl.configs.model import ModelConfig
from braidrl.packing import Normalisers, pack
from braidrl.trainer.model.forward import to_device, token_logprobs
from braidrl.trainer.model.loading import load_model
from braidrl.trainer.rl.components import component_loss
from braidrl.trainer.rl.loss import LossInputs
from braidrl.trainer.rl.losses import make_loss
from braidrl.transport.types import TrainingSample

IPO = make_loss(IPOLossConfig())


def make_samples() -> list[TrainingSample]:
    """Return three groups of siblings, two branches of one trace, and samples with mixed components and
    temperatures."""
    rng = np.random.default_rng(0)
    samples = []
    for group in range(3):
        prompt = rng.integers(0, 256, 5 + 3 * group)
        completions = [rng.integers(0, 256, rng.integers(1, 7)) for _ in range(3)]
        samples += [make_sample(rng, np.append(prompt, tail), len(prompt)) for tail in completions]
    turn = samples[-1].token_ids
    samples += [make_sample(rng, np.append(turn, rng.integers(0, 256, 4)), 11) for _ in range(2)]
    for sample in samples[::2]:
        length, off_prompt = len(sample.token_ids), np.arange(len(sample.token_ids)) > 0
        sample.temperature = 0.6
        sample.rl_weights = (sample.mask * rng.random(length)).astype(np.float32)
        sample.ce_weights = (off_prompt * (rng.random(length) < 0.5)).astype(np.float32)
        sample.ref_kl_weights = (sample.mask * rng.random(length)).astype(np.float32)
        sample.ref_logprobs = (-6 * rng.random(length)).astype(np.float32)
    return samples


def make_sample(rng: np.random.Generator, tokens: np.ndarray, prompt: int) -> TrainingSample:
    mask = np.arange(len(tokens)) >= prompt
    return TrainingSample(
        token_ids=tokens.astype(np.int32),
        mask=mask,
        sampling_logprobs=(mask * rng.normal(-5.5, 0.3, len(tokens))).astype(np.float32),
        advantages=(mask * rng.normal(size=len(tokens))).astype(np.float32),
    )


def train(model: PreTrainedModel, samples: list[TrainingSample], **packing) -> tuple[float, torch.Tensor]:
    """Return loss and flat gradient with packed rows."""
    model.zero_grad()
    total, world_size = 0.0, packing.pop("world_size", 1)
    for rank in range(world_size):
        for row in pack(samples, rank=rank, world_size=world_size, **packing):
            micro = to_device(row, "cpu")
            outputs = token_logprobs(model, micro)
            loss, _ = component_loss(outputs, micro, IPO, Normalisers.of(samples))
            loss.backward()
            total += loss.item()
    return total, torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def plain_logprobs(model: PreTrainedModel, sample: TrainingSample) -> torch.Tensor:
    """Return the log-probs of all tokens except the first, from one transformers forward per sample."""
    ids = torch.from_numpy(sample.token_ids).long()
    logits = model(input_ids=ids[None]).logits[0, :-1] / sample.temperature
    return logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]


def train_plainly(model: PreTrainedModel, samples: list[TrainingSample]) -> tuple[float, torch.Tensor]:
    """Return the loss from a naive implementation, one sample at a time."""
    model.zero_grad()
    total, normalisers = torch.zeros(()), Normalisers.of(samples)
    for sample in samples:
        x = plain_logprobs(model, sample)
        zero = np.zeros(len(sample.token_ids), np.float32)

        def stream(name, default, sample=sample, dtype=x.dtype):
            values = getattr(sample, name)
            return torch.from_numpy(default if values is None else values)[1:].to(dtype)

        rl = stream("rl_weights", sample.mask)
        inputs = LossInputs(
            x, stream("sampling_logprobs", zero), None, stream("advantages", zero), rl != 0, rl
        )
        total = total + IPO(inputs).loss / normalisers.rl
        total = total - (x * stream("ce_weights", zero)).sum() / normalisers.ce
        mu, kl, ref = inputs.inference_logprobs, stream("ref_kl_weights", zero), stream("ref_logprobs", zero)
        keep = ((x.exp() - mu.exp()).detach() >= -0.2) & (kl != 0)
        signal = ((ref - x).detach() * (x - mu).exp() * kl)[keep]
        total = total - signal.sum() / normalisers.ref_kl
    total.backward()
    return total.item(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.fixture(scope="module")
def samples() -> list[TrainingSample]:
    return make_samples()


@pytest.fixture
def model(tiny_model_dir: Path) -> PreTrainedModel:
    return load_model(ModelConfig(path=str(tiny_model_dir)), "cpu")


@pytest.fixture(scope="module")
def plain(tiny_model_dir: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)


# transformers computes norms and rotary embeddings in float32, even in a float64 model
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 3e-7), (torch.float32, 1e-5)])
def test_loss_and_gradient_equal_plain_transformers(model, plain, samples, dtype, tolerance):
    wanted_loss, wanted = train_plainly(plain.to(dtype), samples)
    loss, gradient = train(model.to(dtype), samples, max_tokens=512)
    assert loss == pytest.approx(wanted_loss, rel=tolerance)
    torch.testing.assert_close(gradient, wanted, rtol=tolerance, atol=tolerance * wanted.abs().max().item())


@pytest.mark.parametrize(
    "packing", [{"max_tokens": 1}, {"max_tokens": 25}, {"max_tokens": 512, "world_size": 3}]
)
def test_gradient_does_not_depend_on_the_packing(model, samples, packing):
    """`max_tokens` 1 puts every sample into its own row, so no tokens are shared."""
    loss, gradient = train(model.double(), samples, max_tokens=512)
    order = np.random.default_rng(1).permutation(len(samples))
    for batch in (samples, [samples[i] for i in order]):
        other_loss, other = train(model, batch, **packing)
        assert other_loss == pytest.approx(loss, rel=1e-7)
        torch.testing.assert_close(other, gradient, rtol=1e-6, atol=1e-7)


def test_packed_samples_do_not_see_each_other(model, plain):
    rng = np.random.default_rng(2)
    pair = [make_sample(rng, rng.integers(0, 256, 4), 1) for _ in range(2)]
    (row,) = pack(pair, max_tokens=100)
    outputs = token_logprobs(model, to_device(row, "cpu"))
    wanted = torch.cat([plain_logprobs(plain.float(), sample) for sample in pair])
    torch.testing.assert_close(outputs.logprobs, wanted, rtol=1e-6, atol=1e-6)


def test_candidates_of_an_entry_are_scored_with_it(model, plain):
    """Candidates of each entry: its target, another token, and padding."""
    rng = np.random.default_rng(3)
    sample = make_sample(rng, rng.integers(0, 256, 6), 1)
    sample.temperature = 0.6
    (row,) = pack([sample], max_tokens=100)
    micro = to_device(row, "cpu")
    assert token_logprobs(model, micro).head_logprobs is None
    others = torch.randint(256, (5, 1), generator=torch.Generator().manual_seed(3))
    head_ids = torch.cat([torch.full_like(others, -1), others, micro.targets[:, None]], dim=1)
    outputs = token_logprobs(model, replace(micro, head_ids=head_ids))
    logits = plain.float()(input_ids=micro.token_ids[None]).logits[0] / 0.6
    wanted = logits.log_softmax(-1).gather(-1, head_ids.clamp_min(0))
    wanted[:, 0] = 0
    torch.testing.assert_close(outputs.head_logprobs, wanted, rtol=1e-6, atol=1e-6)
    assert torch.equal(outputs.head_logprobs[:, 2], outputs.logprobs)


def test_activation_checkpointing_sees_the_forest(model, samples):
    wanted = train(model, samples, max_tokens=512)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    loss, gradient = train(model, samples, max_tokens=512)
    assert loss == wanted[0]
    torch.testing.assert_close(gradient, wanted[1], rtol=1e-6, atol=1e-8)


def test_an_empty_micro_batch_has_an_attached_zero_gradient(model):
    loss, gradient = train(model, [], max_tokens=16)
    assert loss == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_bfloat16_compute_is_near_the_exact_one(model, samples):
    (row,) = pack(samples, max_tokens=512)
    micro = to_device(row, "cpu")
    exact, rounded = (token_logprobs(model, micro, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert rounded.logprobs.dtype == rounded.entropy.dtype == torch.float32
    torch.testing.assert_close(rounded.logprobs, exact.logprobs, rtol=0.02, atol=0.02)


def test_bfloat16_gradients_point_the_same_way(model, samples):
    _, exact = train(model, samples, max_tokens=512)
    model.zero_grad()
    (row,) = pack(samples, max_tokens=512)
    micro = to_device(row, "cpu")
    outputs = token_logprobs(model, micro, torch.bfloat16)
    component_loss(outputs, micro, IPO, Normalisers.of(samples))[0].backward()
    rounded = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert rounded.dtype == torch.float32
    assert torch.cosine_similarity(rounded, exact, dim=0) > 0.999
