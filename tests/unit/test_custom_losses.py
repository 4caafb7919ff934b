"""Losses of the user's own, by import path: the document's example as it stands, and what a bad one is told."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from braidrl.configs.loss import CustomLossConfig
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.loss import LossFunctionError
from braidrl.trainer.rl.losses import make_loss
from braidrl.trainer.step import Learner
from tests.unit.trainer_batches import make_batch, trainer_config

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
    """The current directory, which is not on the Python path, with a module `my_module` to be written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    yield tmp_path
    sys.modules.pop("my_module", None)


def learner(model: Path, **changes: object) -> Learner:
    config = trainer_config(model, Path("unused"), **changes)
    return Learner.load(config, Parallel(0, 1, torch.device("cpu")))


def test_the_example_of_the_document_trains(shared_dir: Path, tiny_model_dir: Path, here: Path) -> None:
    """Its module with the package's name changed and its configuration as it is: one step of clipped PPO, which is
    `grpo` with equal bounds against the sampler's log-probs."""
    text = next((shared_dir / "seeds").glob("000_*")).read_text().split("### Custom Loss")[1]
    module = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    assert module.startswith("# my_module.py") and module.count("prime_rl") == 1
    (here / "my_module.py").write_text(module.replace("prime_rl", "braidrl"))
    block = tomllib.loads(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0])["trainer"]["loss"]

    samples = make_batch(3, "rl")
    ours = learner(tiny_model_dir, loss=block).step(1, samples)
    loss = {"type": "grpo", "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 1e9}
    theirs = learner(tiny_model_dir, loss=loss, use_rollout_log_probs=True).step(1, samples)
    for name in ("loss", "loss/rl", "grad_norm", "tokens/rl"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-5)
    assert ours["stepped"] == 1 and ours["loss/rl"] != 0
    assert 0 < ours["clip_frac"] == ours["clip_frac/env/rl-env"] < 1


def test_the_fields_of_the_document_come_first(shared_dir: Path) -> None:
    """`LossInputs` and `LossOutputs` have the document's fields, in its order."""
    from braidrl.trainer.rl import loss

    text = next((shared_dir / "seeds").glob("000_*")).read_text().split("The dataclasses:")[1]
    for name, body in re.findall(r"class (\w+):\n((?:    .*\n)+)", text):
        fields = re.findall(r"^    (\w+):", body, re.MULTILINE)
        assert list(getattr(loss, name).__dataclass_fields__)[: len(fields)] == fields


def test_an_error_names_function_line_and_sample(tiny_model_dir: Path, here: Path) -> None:
    """In whichever row and mini batch the sample stands."""
    (here / "my_module.py").write_text(MODULE)
    samples = make_batch(3, "rl")  # completions of 1, 4, 7 and 10 tokens
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
        ("calls", {}, "trainer.loss.import_path: 'my_module.calls' is [], which is no function"),
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
