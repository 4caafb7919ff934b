"""Custom losses by import path, and errors of faulty ones."""

import re
import sys
from pathlib import Path

import pytest
import torch

from braidrl.configs.loss import CustomLossConfig
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.loss import LossFunctionError, LossInputs, LossOutputs
from braidrl.trainer.rl.losses import make_loss
from braidrl.trainer.rl.step import Learner
from tests.support.trainer_batches import make_batch, trainer_config
from tests.support.user_code import check_clipped_ppo

MODULE = """
import json, torch
from braidrl.trainer.rl.loss import LossOutputs

calls = []

def failing(inputs, limit=4):
    calls.append(inputs)
    if len(inputs.advantages) > limit:
        raise KeyError("no such thing")
    return LossOutputs(-(inputs.trainer_logprobs * inputs.advantages).sum(), {})

def deep(inputs):
    return json.loads("{")

def mean_of_tokens(inputs):
    return inputs.trainer_logprobs

def bare(inputs):
    return LossOutputs(inputs.trainer_logprobs, {})

def number(inputs):
    return LossOutputs(1.0, {})

def a_metric_a_token(inputs):
    return LossOutputs(inputs.trainer_logprobs.sum(), {"x": inputs.trainer_logprobs})

def measured(inputs):
    count = len(inputs.advantages)
    return LossOutputs(inputs.trainer_logprobs.sum(), {"a": count, "b": torch.tensor([count, 1.0 * count])})
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current directory for a module `my_module`; it is not on the Python path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    yield tmp_path
    sys.modules.pop("my_module", None)


def learner(model: Path, **changes: object) -> Learner:
    config = trainer_config(model, Path("unused"), **changes)
    return Learner.load(config, Parallel(0, 1, torch.device("cpu")))


def test_clipped_ppo_trains_as_the_surrogate_with_its_bounds(tiny_model_dir: Path) -> None:
    check_clipped_ppo(
        tiny_model_dir, {"type": "custom", "import_path": "tests.support.custom_losses.ppo_clip_loss"}
    )


def test_the_fields_that_a_loss_reads_come_first_in_this_order() -> None:
    """Losses are called with positional arguments as well."""
    inputs = [
        "trainer_logprobs",
        "inference_logprobs",
        "ref_logprobs",
        "advantages",
        "loss_mask",
        "loss_weights",
    ]
    assert list(LossInputs.__dataclass_fields__)[: len(inputs)] == inputs
    assert list(LossOutputs.__dataclass_fields__) == ["loss", "metrics"]


def test_an_error_names_function_line_and_sample(tiny_model_dir: Path, here: Path) -> None:
    """Independent of the row and mini batch of the sample."""
    (here / "my_module.py").write_text(MODULE)
    samples = make_batch(3, "rl")  # completions have 1, 4, 7 and 10 tokens
    loss = {"type": "custom", "import_path": "my_module.failing"}
    for mini_batches, rows in ((1, 64), (3, 64), (3, 8)):
        broken = learner(tiny_model_dir, loss=loss, mini_batches=mini_batches, micro_batch_tokens=rows)
        with pytest.raises(LossFunctionError) as caught:
            broken.step(1, samples)
        told, named = str(caught.value), re.search(r"trace '(t\d+)'", str(caught.value))
        assert (
            f"the loss my_module.failing raised KeyError: 'no such thing' ({here}/my_module.py, line 10)"
            in told
        )
        assert isinstance(caught.value.__cause__, KeyError)
        (sample,) = (sample for sample in samples if sample.trace_id == named[1])
        assert sample.mask.sum() > 4
        assert f"env 'rl-env', group '{sample.group_id}', episode '{sample.episode_id}'" in told
    fine = learner(tiny_model_dir, loss=loss | {"kwargs": {"limit": 10}})
    assert fine.step(1, samples)["stepped"] == 1
    assert all(inputs.loss_mask.any() for inputs in sys.modules["my_module"].calls)


def test_the_line_is_one_of_the_users_file(here: Path, tiny_model_dir: Path) -> None:
    (here / "my_module.py").write_text(MODULE)
    loss = {"type": "custom", "import_path": "my_module.deep"}
    with pytest.raises(
        LossFunctionError, match=r"raised JSONDecodeError: .*my_module\.py, line 14\), on env 'rl-env'"
    ):
        learner(tiny_model_dir, loss=loss).step(1, make_batch(3, "rl"))


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        (
            "failing",
            {"limits": 3},
            "trainer.loss.kwargs = {'limits': 3} do not fit my_module.failing(inputs, limit=4)",
        ),
        ("missing", {}, "trainer.loss.import_path: 'my_module.missing' cannot be imported"),
        ("calls", {}, "trainer.loss.import_path: 'my_module.calls' is []; a callable is required"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(
    here: Path, name: str, kwargs: dict[str, object], message: str
) -> None:
    (here / "my_module.py").write_text(MODULE)
    with pytest.raises(ValueError) as caught:
        make_loss(CustomLossConfig(import_path=f"my_module.{name}", kwargs=kwargs))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mean_of_tokens", "my_module.mean_of_tokens returned tensor"),
        ("bare", "my_module.bare returned the loss tensor"),
        ("number", "my_module.number returned the loss 1.0; return LossOutputs"),
        ("a_metric_a_token", r"my_module.a_metric_a_token returned the metric 'x' of shape \(\d+,\)"),
    ],
)
def test_what_is_no_scalar_is_refused(here: Path, tiny_model_dir: Path, name: str, message: str) -> None:
    (here / "my_module.py").write_text(MODULE)
    loss = {"type": "custom", "import_path": f"my_module.{name}"}
    with pytest.raises(TypeError, match=message):
        learner(tiny_model_dir, loss=loss).step(1, make_batch(3, "rl"))


def test_metrics_are_means_over_sequences_or_sums(here: Path, tiny_model_dir: Path) -> None:
    (here / "my_module.py").write_text(MODULE)
    samples = make_batch(3, "rl")
    row = learner(tiny_model_dir, loss={"type": "custom", "import_path": "my_module.measured"}).step(
        1, samples
    )
    assert (row["a"], row["b"]) == (sum(sample.mask.sum() for sample in samples) / len(samples), 1)
