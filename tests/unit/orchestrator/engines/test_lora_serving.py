"""Served adapters: merged by the embedded engine, by name in vLLM, and exported from a run."""

import asyncio
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_helpers import DEADLINE, generate, running, submit, wait_until
from peft import PeftModel
from safetensors.torch import load_file, save_file
from stub_vllm import StubVLLM, pool_of
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from braidrl.cli import main
from braidrl.configs.inference import BASE_SUFFIX
from braidrl.configs.rl import RLConfig
from braidrl.inference.engines.request import Completion
from braidrl.inference.engines.torch import TorchEngine
from braidrl.inference.engines.vllm import arguments, variables
from braidrl.inference.engines.weights import WeightsError
from braidrl.orchestrator.engines.pool import ReplicaError
from braidrl.trainer.rl.step import Learner
from braidrl.trainer.state.checkpoint import save_checkpoint
from braidrl.transport.types import TrainingSample
from braidrl.utils.adapter import SETTINGS, TENSORS
from braidrl.utils.run_folder import RunFolder
from braidrl.utils.tiny_model import create_tiny_model
from tests.support.stub_engine import StubEngine
from tests.support.trainer_batches import make_batch
from tests.unit.orchestrator.engines.test_policy_watcher import open_watcher
from tests.unit.trainer.model.test_lora import ALONE, load, logprobs, make_adapter

PROMPT = list(range(40))
IDS = torch.arange(60, 80)[None]


def trained_run(
    model: Path, folder: Path, dtype: str = "float32", **options: Any
) -> tuple[RunFolder, Learner]:
    """Train for three steps. Every version is published, including v0, and the last is saved."""
    run, learner = RunFolder(folder), load(model, folder, dtype, **options)
    learner.publish(run, 0)
    for step in (1, 2, 3):
        learner.step(step, make_batch(step))
        learner.publish(run, step)
    save_checkpoint(run.trainer_checkpoint(3), learner.model, learner.optimizer, 3, ALONE)
    run.configs.mkdir()
    (run.configs / "trainer.toml").write_text(f'[model]\npath = "{model}"\ndtype = "{dtype}"\n')
    return run, learner


@pytest.fixture(scope="module")
def trained(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained_run(tiny_model_dir, tmp_path_factory.mktemp("runs") / "run")[0]


def sampled(request: Completion) -> TrainingSample:
    """Return the training sample of a request, with a loss on its sampled tokens."""
    (sample,) = make_batch(1, "rl", size=1)
    mask = torch.arange(len(request.tokens)) >= len(request.prompt)
    sample.token_ids = torch.tensor(request.tokens, dtype=torch.int32).numpy()
    sample.mask = mask.numpy()
    sample.advantages = mask.float().numpy()
    sample.sampling_logprobs = (0 * mask).float().numpy()
    return sample


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.1)])
def test_after_every_update_the_engine_serves_what_the_trainer_computes(
    tiny_model_dir: Path, tmp_path: Path, dtype: str, tolerance: float
) -> None:
    run, learner = RunFolder(tmp_path), load(tiny_model_dir, tmp_path, dtype)
    learner.publish(run, 0)
    with running(tiny_model_dir, dtype=dtype) as engine:
        for step in (1, 2, 3):
            learner.step(step, make_batch(step))
            learner.publish(run, step)
            assert engine.update_weights(run.weights(step), step).result(DEADLINE) == step
            request = generate(engine, PROMPT, max_tokens=20, seed=step)
            found = logprobs(learner, [sampled(request)])[len(PROMPT) :]
            assert request.versions == [(step, 20)]
            torch.testing.assert_close(found.float(), torch.tensor(request.logprobs), rtol=0, atol=tolerance)


def served(engine: TorchEngine) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in engine.model.module.state_dict().items()}


def test_a_version_is_the_base_plus_its_adapter_whatever_came_before(
    tiny_model_dir: Path, trained: RunFolder
) -> None:
    """Weights are bitwise equal: no update accumulates, and v0 is the base model again."""
    with running(tiny_model_dir, dtype="bfloat16") as engine:
        base = served(engine)
        found = {}
        for version in (1, 2, 3, 1, 0):
            engine.update_weights(trained.weights(version), version).result(DEADLINE)
            found[version, len(found)] = served(engine)
    with running(tiny_model_dir, dtype="bfloat16") as engine:
        engine.update_weights(trained.weights(1), 1).result(DEADLINE)
        expected = served(engine)
    again, start = found[1, 3], found[0, 4]
    for name, tensor in base.items():
        assert torch.equal(start[name], tensor) and torch.equal(again[name], expected[name]), name
        assert torch.equal(found[1, 0][name], expected[name])
        assert torch.equal(expected[name], tensor) == (not name.endswith("proj.weight")), name


def test_a_whole_model_and_fewer_targets_take_the_place_of_an_adapter(
    tiny_model_dir: Path, trained: RunFolder, tmp_path: Path
) -> None:
    other = create_tiny_model(tmp_path / "other", seed=1)
    only_q = make_adapter(other, tmp_path / "only_q", target_modules=["q_proj"])
    expected = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(other), str(only_q)
    ).merge_and_unload()
    with running(tiny_model_dir) as engine:
        for path in (trained.weights(3), other, trained.weights(2), only_q):
            engine.update_weights(path, 1).result(DEADLINE)
        for name, tensor in served(engine).items():
            torch.testing.assert_close(tensor, expected.state_dict()[name], rtol=0, atol=1e-6)


def test_running_sequences_continue_with_the_new_adapter(tiny_model_dir: Path, trained: RunFolder) -> None:
    with running(tiny_model_dir) as engine:
        request = submit(engine, PROMPT[:20], max_tokens=300, seed=1)
        wait_until(lambda: engine.stats.generated_tokens >= 5, "the first tokens")
        engine.update_weights(trained.weights(3), 3).result(DEADLINE)
        (old, before), (new, after) = request.future.result(DEADLINE).versions
    assert (old, new) == (0, 3) and before > 0 and before + after == 300
    plain = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tiny_model_dir), str(trained.weights(3))
    )
    with torch.no_grad():
        expected = plain(torch.tensor([request.tokens])).logits[0, :-1].log_softmax(-1)
    first = 19 + before
    expected = expected[range(first, len(expected)), request.tokens[first + 1 :]]
    torch.testing.assert_close(torch.tensor(request.logprobs[before:]), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda tensors: tensors.pop(next(iter(tensors))), "0 unknown tensors, 1 weights of another shape"),
        (lambda tensors: tensors.update(extra=torch.zeros(2)), "1 unknown tensors"),
        (lambda tensors: tensors.clear(), "it is empty"),
        (None, "cannot read"),
    ],
)
def test_an_adapter_that_does_not_fit_changes_nothing(
    tiny_model_dir: Path, trained: RunFolder, tmp_path: Path, damage: Any, message: str
) -> None:
    folder = shutil.copytree(trained.weights(1), tmp_path / "damaged")
    if damage is None:
        (folder / TENSORS).write_bytes(b"no safetensors")
    else:
        damage(tensors := load_file(folder / TENSORS))
        save_file(tensors, folder / TENSORS)
    with running(tiny_model_dir) as engine:
        before = served(engine)
        with pytest.raises(WeightsError, match=message):
            engine.update_weights(folder, 5).result(DEADLINE)
        assert all(torch.equal(tensor, before[name]) for name, tensor in served(engine).items())
        assert engine.version == 0


# -- export


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("source", ["run", "checkpoint"])
def test_export_merges_or_keeps_the_adapter(
    tiny_model_dir: Path, trained: RunFolder, tmp_path: Path, source: str
) -> None:
    """Exports merge for transformers or keep the adapter for peft, and need only the checkpoint folder."""
    path = trained.root if source == "run" else shutil.copytree(trained.checkpoint(3), tmp_path / "moved")
    assert main(["export", str(path), str(tmp_path / "merged")]) == 0
    assert main(["export", str(path), str(tmp_path / "alone"), "--adapter"]) == 0
    assert {file.name for file in (tmp_path / "alone").iterdir()} == {SETTINGS, TENSORS}
    alone, published = (load_file(folder / TENSORS) for folder in (tmp_path / "alone", trained.weights(3)))
    assert alone.keys() == published.keys() and all(
        torch.equal(alone[name], published[name]) for name in alone
    )
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    before = logits(base)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    expected = logits(PeftModel.from_pretrained(base, str(tmp_path / "alone")))
    torch.testing.assert_close(logits(merged), expected, rtol=0, atol=1e-5)
    assert not torch.allclose(expected, before, atol=1e-2)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").encode("hi") == [104 - 33, 105 - 33]


def test_an_unsupported_export_is_an_error(
    tiny_model_dir: Path, trained: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    cases = {
        (str(tiny_model_dir), out, "--adapter"): "is a whole model, not an adapter",
        (
            str(trained.root),
            out,
            "--adapter",
            "--dtype",
            "bfloat16",
        ): "--dtype: is 'bfloat16', but --adapter writes",
    }
    for args, message in cases.items():
        assert main(["export", *args]) == 2
        assert message in capsys.readouterr().err


# -- vLLM and the watcher


def rl_config(**trainer: Any) -> RLConfig:
    source = {"env": {"taskset": {"id": "reverse-text"}}}
    data = {"model": {"path": "models/m"}, "orchestrator": {"train": {"source": [source]}}}
    return RLConfig.model_validate(data | {"trainer": trainer})


def test_an_adapter_is_served_under_the_name_of_the_policy() -> None:
    config = rl_config(lora={"rank": 12})
    words = arguments(config.inference)
    assert ("--max-lora-rank", "16") in pairwise(words) and "--enable-lora" in words
    assert ("--served-model-name", f"models/m{BASE_SUFFIX}") in pairwise(words)
    assert variables(config.inference)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert config.orchestrator.adapter and not rl_config().orchestrator.adapter
    assert "--enable-lora" not in arguments(rl_config().inference)


async def test_vllm_replaces_the_previous_adapter(trained: RunFolder) -> None:
    """The first adapter uses the route for adapters, later ones must also apply to running requests."""
    stub = StubVLLM(model=f"models/m{BASE_SUFFIX}")
    async with pool_of(stub) as pool:
        for version in (0, 1):
            await pool.update(pool.all[0], trained.weights(version), version, DEADLINE)
    paths = [str(trained.weights(version).resolve()) for version in (0, 1)]
    calls = [call for call in stub.calls if "lora" in str(call)]
    assert calls == [
        ("/v1/load_lora_adapter", {"lora_name": "models/m", "lora_path": paths[0]}),
        ("/collective_rpc", {"method": "load_adapter", "kwargs": {"lora_path": paths[1]}}),
    ]
    assert [path for path, _ in stub.calls].count("/reset_prefix_cache?reset_running_requests=true") == 2


async def test_a_vllm_without_adapters_is_refused_with_the_options_to_set(trained: RunFolder) -> None:
    async with pool_of(StubVLLM(model="models/m")) as pool:
        with pytest.raises(ReplicaError, match=r"or with --enable-lora, --served-model-name models/m@base"):
            await pool.update(pool.all[0], trained.weights(1), 1, DEADLINE)


async def test_the_first_version_of_an_adapter_is_given_to_every_replica(
    trained: RunFolder, tmp_path: Path
) -> None:
    """A replica that restarts before the second version receives the first one again."""
    start = shutil.copytree(trained.weights(0), RunFolder(tmp_path).weights(0))
    async with StubEngine() as engine, open_watcher(tmp_path, engine, publishes_start=True) as watcher:
        assert engine.updates == [{"path": str(start), "version": 0}]
        watcher.replicas.lost(watcher.replicas.all[0], "it restarted")
        async with asyncio.timeout(DEADLINE):
            while len(engine.updates) < 2:
                await asyncio.sleep(0.01)
    assert engine.updates[0] == engine.updates[1]
