"""Export of any policy of a run to a plain Hugging Face folder (FIELD_CASES 44)."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from braidrl.cli import main
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.step import Learner
from braidrl.trainer.state.checkpoint import save_checkpoint
from braidrl.utils.run_folder import RunFolder
from tests.support.trainer_batches import make_batch, trainer_config

ALONE = Parallel(0, 1, torch.device("cpu"))
IDS = torch.arange(60, 80)[None]


def base_model(folder: Path, tiny: Path, tied: bool) -> Path:
    """Small model of another family, with the tiny tokenizer and a custom generation config."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**sizes, **heads, tie_word_embeddings=tied)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny).save_pretrained(folder)
    GenerationConfig(temperature=0.625, do_sample=True).save_pretrained(folder)
    return folder


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def trained(
    request: pytest.FixtureRequest, tiny_model_dir: Path, tmp_path: Path
) -> Iterator[tuple[RunFolder, Tensor]]:
    """Run of one step in bfloat16, and the logits of its float32 master weights."""
    base = base_model(tmp_path / "base", tiny_model_dir, request.param)
    run = RunFolder(tmp_path / "run")
    config = trainer_config(base, run.root, dtype="bfloat16")
    learner = Learner.load(config, ALONE)
    learner.step(1, make_batch(1))
    save_checkpoint(run.trainer_checkpoint(1), learner.model, learner.optimizer, 1, ALONE)
    learner.publish(run, 1)
    run.configs.mkdir()
    (run.configs / "trainer.toml").write_text(f'[model]\npath = "{base}"\ndtype = "bfloat16"\n')
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    plain.load_state_dict(learner.model.state_dict())
    yield run, plain(IDS).logits.detach()


def logits(folder: Path) -> Tensor:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(IDS).logits.detach()


@pytest.mark.parametrize("origin", ["weights", "base"])
def test_a_checkpoint_loads_elsewhere_with_equal_logits(trained, tmp_path: Path, origin: str) -> None:
    """In float32, the export equals the master weights bit for bit, with or without published weights."""
    run, expected = trained
    if origin == "base":
        shutil.rmtree(run.weights(1))
    out = tmp_path / "out"
    assert main(["export", str(run.root), str(out), "--dtype", "float32"]) == 0
    assert torch.equal(logits(out), expected)
    tied = AutoModelForCausalLM.from_pretrained(out)
    assert tied.dtype == torch.float32
    assert (tied.lm_head.weight is tied.model.embed_tokens.weight) == tied.config.tie_word_embeddings
    assert GenerationConfig.from_pretrained(out).temperature == 0.625
    messages = [{"role": "user", "content": "hi"}]
    before, after = (AutoTokenizer.from_pretrained(path) for path in (tmp_path / "base", out))
    assert before.apply_chat_template(messages) == after.apply_chat_template(messages)


def test_without_a_type_it_is_what_the_run_publishes(trained, tmp_path: Path, capsys) -> None:
    run, _ = trained
    assert main(["export", str(run.checkpoint(1)), str(tmp_path / "out")]) == 0
    assert f"{tmp_path / 'out'}: {run.trainer_checkpoint(1)} in bfloat16" in capsys.readouterr().out
    published, exported = (
        load_file(folder / "model.safetensors") for folder in (run.weights(1), tmp_path / "out")
    )
    assert published.keys() == exported.keys()
    assert all(torch.equal(published[name], tensor) for name, tensor in exported.items())
    assert next(iter(exported.values())).dtype == torch.bfloat16


def test_published_weights_are_converted(trained, tmp_path: Path) -> None:
    run, _ = trained
    for name, dtype in (("same", None), ("half", "float16")):
        flags = [] if dtype is None else ["--dtype", dtype]
        assert main(["export", str(run.weights(1)), str(tmp_path / name), *flags]) == 0
    assert torch.equal(logits(tmp_path / "same"), logits(run.weights(1)))
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "half").dtype == torch.float16


def test_a_checkpoint_alone_needs_its_base(trained, tmp_path: Path, capsys) -> None:
    run, expected = trained
    run.checkpoint(1).rename(tmp_path / "best")
    args = ["export", str(tmp_path / "best"), str(tmp_path / "out")]
    assert main(args) == 2
    assert "--base: " in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main([*args, "--base", str(tmp_path / "base")]) == 0
    assert torch.equal(logits(tmp_path / "out"), expected), "float32 where nobody says what was published"


def test_what_cannot_be_exported_is_one_clear_error(
    trained, tiny_model_dir: Path, tmp_path: Path, capsys
) -> None:
    run, _ = trained
    out = str(tmp_path / "out")
    cases = {
        ("nowhere", out): "source: there is no folder nowhere",
        (str(run.root), str(tmp_path / "base")): "target: ",
        (str(run.root), out, "--step", "5"): "no weights or checkpoint of step 5; available steps: [1]",
        (str(run.root), out, "--base", str(tiny_model_dir)): "belongs to another model",
    }
    for args, message in cases.items():
        assert main(["export", *args]) == 2
        assert message in capsys.readouterr().err
    assert not Path(out).exists() and not Path(out + ".tmp").exists()
