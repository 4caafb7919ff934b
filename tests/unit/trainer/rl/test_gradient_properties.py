"""Loss and gradient of random batches do not depend on their packing, with a real tiny transformer in float64."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from braidrl.configs.trainer.config import TrainerConfig
from braidrl.trainer.model.forward import to_device, token_logprobs
from braidrl.trainer.model.loading import pack_exactly
from braidrl.trainer.rl.batch import StepBatch
from braidrl.trainer.rl.components import component_loss
from braidrl.trainer.rl.objective import RLObjective
from braidrl.trainer.rl.preparation import prepare
from braidrl.transport.types import TrainingSample

VOCABULARY = 32
OBJECTIVES = {
    "ipo": {},
    "icepop with score centering": {
        "loss": {"type": "icepop", "score_centering": True},
        "opsm": {"delta": 0.0},
    },
    "grpo": {
        "loss": {"type": "grpo"},
        "is_correction": {},
        "entropy_coef": 0.1,
        "reference_kl": {"path": "r", "coef": 0.5, "use_unbiased_kl": True},
    },
    "gspo": {
        "loss": {"type": "gspo"},
        "loss_agg_mode": "seq-mean-token-mean",
        "m2po": {"threshold": 0.1},
        "is_correction": {"level": "geometric", "action": "mask", "lower_bound": 0.8, "upper_bound": 1.25},
        "opsm": {"delta": 0.0},
    },
    "custom": {"loss": {"type": "custom", "import_path": "tests.support.custom_losses.ipo_of_my_own"}},
}
COMMON = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def objective_config(name: str) -> TrainerConfig:
    return TrainerConfig.model_validate({"model": {"path": "m"}, **OBJECTIVES[name]})


@pytest.fixture(scope="module")
def model() -> GPTNeoXForCausalLM:
    """A model whose norms compute in its own dtype. Those of Llama and Qwen round to float32 even in float64."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    return pack_exactly(GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=VOCABULARY, **sizes))).double()


@st.composite
def samples(draw: st.DrawFn) -> list[TrainingSample]:
    """Groups that share prompts, with any lengths and components, one-token and empty completions included."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    found = []
    for group in range(draw(st.integers(1, 3))):
        prompt = rng.integers(0, VOCABULARY, draw(st.integers(1, 6)))
        for _ in range(draw(st.integers(1, 3))):
            completion = rng.integers(0, VOCABULARY, draw(st.integers(0, 5)))
            found.append(
                make_sample(rng, np.append(prompt, completion), len(prompt), f"g{group}", len(found))
            )
    return found


def make_sample(
    rng: np.random.Generator, tokens: np.ndarray, prompt: int, group: str, number: int
) -> TrainingSample:
    length, mask = len(tokens), np.arange(len(tokens)) >= prompt
    weight = lambda share: np.where(np.arange(length) > 0, (rng.random(length) < share) * 0.5, 0)
    head = np.stack([rng.permutation(VOCABULARY)[:4] for _ in range(int(mask.sum()))] or [np.zeros(4)])
    return TrainingSample(
        token_ids=tokens.astype(np.int32),
        mask=mask,
        sampling_logprobs=np.where(mask, rng.normal(-3.4, 0.2, length), 0),
        temperature=float(rng.choice([0.7, 1.0])),
        advantages=np.where(mask, rng.normal(size=length), 0),
        rl_weights=np.where(mask, weight(0.8), 0),
        ce_weights=weight(0.3),
        ref_kl_weights=np.where(mask, weight(0.3), 0),
        ref_logprobs=rng.normal(-3.4, 0.5, length),
        head_ids=head[: mask.sum()].astype(np.int32),
        head_logprobs=rng.normal(-3, 0.3, (int(mask.sum()), 4)),
        env=f"env{number % 2}",
        group_id=group,
        trace_id=f"t{number // 2}",
    )


def gradient(
    model: GPTNeoXForCausalLM, batch: StepBatch, config: TrainerConfig, max_tokens: int, world_size: int
) -> tuple[float, torch.Tensor]:
    model.zero_grad()
    objective, total = RLObjective.of(config), 0.0
    for rank in range(world_size):
        for row in batch.pack(max_tokens, rank, world_size):
            micro = to_device(row, "cpu")
            loss, _ = component_loss(token_logprobs(model, micro), micro, objective, batch.normalisers)
            loss.backward()
            total += loss.item()
    return total, torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def prepared(drawn: list[TrainingSample], config: TrainerConfig) -> StepBatch:
    rng = np.random.default_rng(len(drawn))
    near = lambda: [sample.sampling_logprobs + rng.normal(0, 0.2, len(sample.mask)) for sample in drawn]
    return prepare(drawn, config, near(), near())[0]


def assert_equal(found: tuple[float, torch.Tensor], expected: tuple[float, torch.Tensor]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-9, abs=1e-12)
    scale = float(expected[1].abs().max())
    torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=1e-9 * scale + 1e-15)


@pytest.mark.parametrize("name", OBJECTIVES)
@settings(COMMON, max_examples=15)
@given(drawn=samples(), cut=st.integers(1, 40), ranks=st.integers(1, 3), seed=st.integers(0, 99))
def test_neither_split_nor_order_nor_padding_nor_ranks_matter(model, name, drawn, cut, ranks, seed):
    config = objective_config(name)
    whole = prepared(drawn, config)
    expected = gradient(model, whole, config, 10_000, 1)
    order = np.random.default_rng(seed).permutation(len(drawn)).tolist()
    assert_equal(gradient(model, whole.take(order), config, cut, ranks), expected)


@settings(COMMON, max_examples=15)
@given(drawn=samples())
def test_a_custom_function_trains_as_the_built_in_that_it_calls(model, drawn):
    built_in, own = objective_config("ipo"), objective_config("custom")
    expected = gradient(model, prepared(drawn, built_in), built_in, 100, 1)
    assert_equal(gradient(model, prepared(drawn, own), own, 100, 1), expected)


def test_the_objectives_differ(model):
    """Otherwise the properties above could hold trivially."""
    rng = np.random.default_rng(5)
    drawn = [make_sample(rng, rng.integers(0, VOCABULARY, 9), 3, "g0", number) for number in range(4)]
    found = {}
    for name in OBJECTIVES:
        config = objective_config(name)
        found[name] = gradient(model, prepared(drawn, config), config, 100, 1)[1]
    for one, other in itertools.combinations(set(found) - {"custom"}, 2):
        assert (found[one] - found[other]).abs().max() > 1e-6, (one, other)
