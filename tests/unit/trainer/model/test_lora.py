"""Adapters: exact training, checkpoints and published folders without the base model, and initialisation."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from braidrl.configs.sft import SFTConfig
from braidrl.configs.trainer.lora import LoRAConfig
from braidrl.trainer.model.forward import to_device
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.batch import StepBatch
from braidrl.trainer.rl.step import Learner
from braidrl.trainer.sft.train import train_sft
from braidrl.trainer.shards import trained_parameters
from braidrl.trainer.state.checkpoint import load_checkpoint, save_checkpoint
from braidrl.transport.types import TrainingSample
from braidrl.utils.adapter import TENSORS
from braidrl.utils.run_folder import RunFolder
from braidrl.utils.tiny_model import create_tiny_model
from tests.support.trainer_batches import make_batch, trainer_config

ALONE = Parallel(0, 1, torch.device("cpu"))
LAYER = "model.layers.0.self_attn.q_proj"


def make_adapter(model: Path, folder: Path, **settings: Any) -> Path:
    """Folder of a peft adapter that changes the outputs."""
    torch.manual_seed(1)
    settings = {"r": 4, "lora_alpha": 6, "target_modules": "all-linear", "task_type": "CAUSAL_LM"} | settings
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), LoraConfig(**settings)
    )
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapted.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def started(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tiny_model_dir, tmp_path_factory.mktemp("adapters") / "started")


def load(model: Path, folder: Path, dtype: str = "float32", **options: Any) -> Learner:
    return Learner.load(trainer_config(model, folder, dtype, **({"lora": {"rank": 4}} | options)), ALONE)


def logprobs(learner: Learner, samples: list[TrainingSample]) -> Tensor:
    return torch.cat([torch.from_numpy(row) for row in learner._logprobs(learner.policy, samples)])


def test_a_fresh_adapter_is_the_model_itself_and_alone_is_trained(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    learner, plain = load(tiny_model_dir, tmp_path), load(tiny_model_dir, tmp_path, lora=None)
    batch = make_batch(1)
    assert torch.equal(logprobs(learner, batch), logprobs(plain, batch))
    before = {name: parameter.clone() for name, parameter in learner.model.named_parameters()}
    for step in (1, 2):
        learner.step(step, batch)
    trained = trained_parameters(learner.model)
    for name, parameter in learner.model.named_parameters():
        assert (name in trained) == (".lora_" in name) == (not torch.equal(parameter, before[name])), name
    assert len(learner.optimizer.state) == len(trained)
    assert not torch.equal(logprobs(learner, batch), logprobs(plain, batch))


def gradients(learner: Learner, batch: list[TrainingSample]) -> dict[str, Tensor]:
    for row in learner._rows(StepBatch(batch)):
        learner._backward(to_device(row, "cpu"), StepBatch(batch).normalisers)
    return {name: p.grad for name, p in learner.model.named_parameters() if p.grad is not None}


def test_gradients_are_those_of_the_merged_weights(
    tiny_model_dir: Path, started: Path, tmp_path: Path
) -> None:
    """For W + s B A, dL/dB = s G A^T and dL/dA = s B^T G, where G is dL/dW of the merged model."""
    merged = AutoPeftModelForCausalLM.from_pretrained(started).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    batch = make_batch(1)
    learner = load(tiny_model_dir, tmp_path, lora={"rank": 4, "path": started})
    found = gradients(learner, batch)
    whole = gradients(load(tmp_path / "merged", tmp_path, lora=None), batch)
    parameters, scale = dict(learner.model.named_parameters()), 6 / 4
    assert len(found) == len(trained_parameters(learner.model))
    again = load(tiny_model_dir, tmp_path, lora={"rank": 4, "path": started}, activation_checkpointing=True)
    assert all(torch.equal(gradient, found[name]) for name, gradient in gradients(again, batch).items())
    for name in (LAYER, "model.layers.1.mlp.down_proj"):
        a, b = (f"{name}.lora_{part}.default.weight" for part in "AB")
        expected = scale * whole[f"{name}.weight"] @ parameters[a].T
        torch.testing.assert_close(found[b], expected, rtol=1e-4, atol=1e-6)
        expected = scale * parameters[b].T @ whole[f"{name}.weight"]
        torch.testing.assert_close(found[a], expected, rtol=1e-4, atol=1e-6)


def test_bfloat16_stores_the_adapted_weights_in_it_and_computes_the_same(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    learner, plain = (load(tiny_model_dir, tmp_path, "bfloat16", lora=lora) for lora in ({"rank": 4}, None))
    layer = learner.model.get_submodule(LAYER)
    assert layer.base_layer.weight.dtype == torch.bfloat16
    assert {p.dtype for p in trained_parameters(learner.model).values()} == {torch.float32}
    assert learner.model.get_input_embeddings().weight.dtype == torch.float32
    assert torch.equal(logprobs(learner, make_batch(1)), logprobs(plain, make_batch(1)))


def test_what_is_published_is_a_peft_folder_of_the_masters(tiny_model_dir: Path, tmp_path: Path) -> None:
    learner, run = load(tiny_model_dir, tmp_path), RunFolder(tmp_path)
    learner.step(1, make_batch(1))
    learner.publish(run, 1)
    assert sorted(path.name for path in run.weights(1).iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    loaded = AutoPeftModelForCausalLM.from_pretrained(run.weights(1))
    ids = torch.arange(60, 80)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, learner_logits(learner, ids), rtol=0, atol=1e-5)


def learner_logits(learner: Learner, ids: Tensor) -> Tensor:
    learner.model.set_attn_implementation("sdpa")
    return learner.model(ids).logits


def test_a_checkpoint_holds_the_adapter_alone_and_resumes_exactly(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    options = {"reference_kl": {"coef": 0.5, "kl_type": "k2", "update_interval": 1}}
    learner, run = load(tiny_model_dir, tmp_path, **options), RunFolder(tmp_path)
    for step in (1, 2):
        learner.step(step, make_batch(step))
        state = (learner.model, learner.optimizer, step, ALONE, learner.moving_reference)
        save_checkpoint(run.trainer_checkpoint(step), *state)
    for file in ("model", "reference"):
        saved = load_file(run.trainer_checkpoint(1) / f"{file}.safetensors")
        assert saved.keys() == trained_parameters(learner.model).keys()
    resumed = load(tiny_model_dir, tmp_path, **options)
    resume(resumed, run.trainer_checkpoint(1))
    metrics = resumed.step(2, make_batch(2))
    assert metrics["reference_kl"] == 0, "the reference became the policy after step 1"
    for name, parameter in learner.model.named_parameters():
        assert torch.equal(parameter, dict(resumed.model.named_parameters())[name]), name
    other = load(tiny_model_dir, tmp_path, lora={"rank": 4, "alpha": 1.0})
    with pytest.raises(ValueError, match=r"scaled by 2, that of the run by 0.25; set rank and alpha"):
        resume(other, run.trainer_checkpoint(1))


def resume(learner: Learner, folder: Path) -> None:
    load_checkpoint(folder, learner.model, learner.optimizer, ALONE, learner.moving_reference)


def test_the_reference_is_the_starting_adapter_or_the_bare_model(
    tiny_model_dir: Path, started: Path, tmp_path: Path
) -> None:
    """Both references share the base model. A model at another path is loaded separately, with the same results."""
    copy = create_tiny_model(tmp_path / "copy")
    kl: dict[str | None, float] = {}
    for path in (None, str(tiny_model_dir), str(copy)):
        options = {
            "lora": {"rank": 4, "path": started},
            "reference_kl": {"path": path, "coef": 0.5, "kl_type": "k2"},
        }
        learner = load(tiny_model_dir, tmp_path, **options)
        assert (learner.config.shares_reference) == (path != str(copy))
        kl[path] = learner.step(1, make_batch(1, "rl"))["reference_kl"]
        assert learner.step(2, make_batch(1, "rl"))["reference_kl"] != kl[path]
    assert kl[None] == 0
    assert kl[str(tiny_model_dir)] == pytest.approx(kl[str(copy)], rel=1e-6)
    assert kl[str(copy)] > 1e-3


def test_demonstrations_train_an_adapter_too(tiny_model_dir: Path, tmp_path: Path) -> None:
    """`braid sft` trains an adapter from which a run can start."""
    lines = [
        f'{{"messages": [{{"role": "user", "content": "{text}"}}, {{"role": "assistant", "content": "b"}}]}}'
        for text in "xyz"
    ]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    data = {
        "model": {"path": str(tiny_model_dir)},
        "lora": {"rank": 4},
        "max_steps": 2,
        "batch_size": 2,
        "threads": 1,
    }
    data |= {"data": {"path": tmp_path / "data.jsonl"}, "output_dir": tmp_path / "sft", "optim": {"lr": 1e-2}}
    train_sft(SFTConfig.model_validate(data))
    adapter = RunFolder(tmp_path / "sft").weights(2)
    learner = load(tiny_model_dir, tmp_path, lora={"rank": 4, "path": adapter})
    saved = load_file(adapter / TENSORS)
    assert torch.equal(
        saved[f"base_model.model.{LAYER}.lora_B.weight"],
        learner.model.get_submodule(f"{LAYER}.lora_B.default").weight,
    )
    assert saved[f"base_model.model.{LAYER}.lora_B.weight"].abs().max() > 0


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"dropout": 0.1}, "dropout is 0.1, but log-probs of a forward with dropout"),
        (
            {"path": "a", "alpha": 8, "target_modules": ["q_proj"]},
            "alpha and target_modules cannot be set together with path",
        ),
    ],
)
def test_settings_that_contradict_are_refused(lora: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LoRAConfig.model_validate(lora)


def test_a_moving_reference_must_share_the_base(tiny_model_dir: Path, tmp_path: Path) -> None:
    reference = {"path": str(tmp_path), "update_interval": 2}
    with pytest.raises(
        ValidationError, match="update_interval = 2 would apply the policy's adapter to another model"
    ):
        trainer_config(tiny_model_dir, tmp_path, lora={}, reference_kl=reference)


@pytest.mark.parametrize(
    ("settings", "lora", "message"),
    [
        (
            None,
            {"target_modules": ["q_proj", "w_proj"]},
            "has no module w_proj; its linear layers are .*q_proj",
        ),
        (None, {"target_modules": ["lm_head"]}, "lm_head has no adapter that could be trained exactly"),
        (
            None,
            {"target_modules": ["embed_tokens"]},
            "embed_tokens has no adapter that could be trained exactly",
        ),
        ({}, {"rank": 8}, "rank is 8, but the adapter in .* has rank 4"),
        ({"use_dora": True}, {"rank": 4}, "use_dora = True; only plain LoRA"),
        ({"modules_to_save": ["lm_head"]}, {"rank": 4}, "modules_to_save = "),
        ({"init_lora_weights": "pissa"}, {"rank": 4}, "init_lora_weights = 'pissa'"),
    ],
)
def test_adapters_that_cannot_be_trained_are_refused(
    tiny_model_dir: Path, tmp_path: Path, settings: dict[str, Any] | None, lora: dict[str, Any], message: str
) -> None:
    if settings is not None:
        lora = lora | {"path": make_adapter(tiny_model_dir, tmp_path / "adapter", **settings)}
    with pytest.raises(ValueError, match=message):
        load(tiny_model_dir, tmp_path, lora=lora)


def test_an_adapter_of_another_model_is_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    deeper = create_tiny_model(tmp_path / "deeper", num_layers=3)
    path = make_adapter(deeper, tmp_path / "adapter")
    with pytest.raises(
        ValueError, match=r"is of another model: 14 of its tensors .*set model.path to its base"
    ):
        load(tiny_model_dir, tmp_path, lora={"rank": 4, "path": path})
    with pytest.raises(ValueError, match="cannot read an adapter in"):
        load(tiny_model_dir, tmp_path, lora={"rank": 4, "path": deeper})
