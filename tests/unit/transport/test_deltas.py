"""Deltas give exactly the same weights as whole versions, bit for bit, for engines, exports and resumed runs."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from engine_helpers import DEADLINE, generate, running
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from stub_vllm import StubVLLM, pool_of
from torch import Tensor

from braidrl.configs.rl import RLConfig
from braidrl.inference.engines.torch import TorchEngine
from braidrl.inference.engines.weights import WeightsError
from braidrl.orchestrator.engines.pool import ReplicaError
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.step import Learner
from braidrl.transport.delta import read_delta, save_delta
from braidrl.transport.weights import DELTA, base_of, bases_of, forget_weights_before
from braidrl.utils.model_source import find_model
from braidrl.utils.run_folder import RunFolder
from tests.support.trainer_batches import make_batch, trainer_config

ALONE = Parallel(0, 1, torch.device("cpu"))
DELTAS = {"weights": {"delta": True, "full_every": 4}, "optim": {"lr": 1e-6}}


def trained_run(model: Path, folder: Path, dtype: str, versions: range, **options: object) -> RunFolder:
    run = RunFolder(folder)
    learner = Learner.load(
        trainer_config(model, folder, dtype, **{"optim": DELTAS["optim"], **options}), ALONE
    )
    for step in versions:
        learner.step(step, make_batch(step))
        learner.publish(run, step, whole=step == 7)
    return run


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def runs(
    request: pytest.FixtureRequest, tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, RunFolder, RunFolder]:
    """The dtype, and two runs with the same seven versions, published as deltas and whole."""
    folder = tmp_path_factory.mktemp("runs")
    found = (
        trained_run(tiny_model_dir, folder / name, request.param, range(1, 8), **options)
        for name, options in (("deltas", DELTAS), ("whole", {}))
    )
    return request.param, *found  # type: ignore[return-value]


def served(engine: TorchEngine) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in engine.model.module.state_dict().items()}


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_what_is_whole_and_what_is_small(runs: tuple[str, RunFolder, RunFolder]) -> None:
    """The first version, every fourth one and that of a checkpoint are whole."""
    dtype, deltas, whole = runs
    assert [base_of(deltas.weights(version)) is None for version in range(1, 8)] == [
        True,
        *2 * [False, False, True],
    ]
    assert [folder.name for folder in bases_of(deltas.weights(6))] == ["step_000005", "step_000004"]
    if dtype == "bfloat16":
        for version in (2, 3, 5, 6):
            assert size(deltas.weights(version)) < size(whole.weights(version)) / 2


def test_every_version_is_that_of_whole_publishing(
    runs: tuple[str, RunFolder, RunFolder], tiny_model_dir: Path
) -> None:
    """Orders of updates: all versions, some skipped, one update of a restarted server, and an older version after a
    newer."""
    dtype, deltas, whole = runs
    expected = {}
    with running(tiny_model_dir, dtype=dtype) as engine:
        for version in range(1, 8):
            engine.update_weights(whole.weights(version), version).result(DEADLINE)
            expected[version] = served(engine), generate(engine, [1, 2, 3], max_tokens=8, seed=1).logprobs
    for order in ((1, 2, 3, 4, 5, 6, 7), (1, 3, 6), (6,), (3, 2)):
        with running(tiny_model_dir, dtype=dtype) as engine:
            for version in order:
                assert engine.update_weights(deltas.weights(version), version).result(DEADLINE) == version
                tensors, logprobs = expected[version]
                assert all(torch.equal(tensor, tensors[name]) for name, tensor in served(engine).items())
                assert generate(engine, [1, 2, 3], max_tokens=8, seed=1).logprobs == logprobs


def test_a_delta_of_something_else_changes_nothing(
    runs: tuple[str, RunFolder, RunFolder], tiny_model_dir: Path, tmp_path: Path
) -> None:
    dtype, deltas, _ = runs
    copy = RunFolder(shutil.copytree(deltas.root, tmp_path / "run"))
    (copy.weights(3) / DELTA).write_text(
        (copy.weights(3) / DELTA).read_text().replace("step_000002", "step_000001")
    )
    with running(tiny_model_dir, dtype=dtype) as engine:
        engine.update_weights(copy.weights(1), 1).result(DEADLINE)
        before = served(engine)
        with pytest.raises(WeightsError, match="does not apply to the served weights: the checksum of"):
            engine.update_weights(copy.weights(3), 3).result(DEADLINE)
        assert engine.version == 1
        assert all(torch.equal(tensor, before[name]) for name, tensor in served(engine).items())
    other = "float32" if dtype == "bfloat16" else "bfloat16"
    message = r"in torch\.\w+, but served is torch\.\w+"
    with running(tiny_model_dir, dtype=other) as engine, pytest.raises(WeightsError, match=message):
        engine.update_weights(deltas.weights(2), 2).result(DEADLINE)
    shutil.rmtree(copy.weights(4))
    with (
        running(tiny_model_dir, dtype=dtype) as engine,
        pytest.raises(WeightsError, match=r"no \*\.safetensors in .*step_000004"),
    ):
        engine.update_weights(copy.weights(6), 6).result(DEADLINE)


ELEMENTS = st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf"), 3e-41])
TENSORS = st.lists(st.tuples(ELEMENTS, ELEMENTS), min_size=1, max_size=40)


@given(pairs=TENSORS, dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_any_two_tensors_differ_by_a_delta(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[float, float]], dtype: torch.dtype
) -> None:
    folder = tmp_path_factory.mktemp("delta")
    old, new = (
        {"x": torch.tensor(column, dtype=dtype)[:, None], "same": torch.ones(2)} for column in zip(*pairs)
    )
    save_delta(old, new, "step_000001", folder)
    state = {name: tensor.clone() for name, tensor in old.items()}
    for change in read_delta(folder, state):
        change.apply(state[change.name])
    for name, tensor in new.items():
        assert bytes(state[name].view(torch.uint8).flatten()) == bytes(tensor.view(torch.uint8).flatten())


def test_what_a_replica_may_need_stays(runs: tuple[str, RunFolder, RunFolder], tmp_path: Path) -> None:
    copy = RunFolder(shutil.copytree(runs[1].root, tmp_path / "run"))
    assert forget_weights_before(copy, 3) == []
    assert forget_weights_before(copy, 6, keep=[2]) == [1, 3]
    assert copy.published("weights") == [2, 4, 5, 6, 7]
    assert forget_weights_before(copy, 7) == [2, 4, 5, 6]


def test_a_delta_is_no_model(runs: tuple[str, RunFolder, RunFolder], tmp_path: Path) -> None:
    copy = RunFolder(shutil.copytree(runs[1].root, tmp_path / "run"))
    shutil.rmtree(copy.weights(7))
    assert find_model(copy.root).step == 4
    with pytest.raises(ValueError, match=r"no weights or checkpoint of step 6; available steps: \[1, 4\]"):
        find_model(copy.root, 6)


def test_engines_and_adapters_that_take_no_deltas(tiny_model_dir: Path, tmp_path: Path) -> None:
    source = {"env": {"taskset": {"id": "reverse-text"}}}
    data = {"model": {"path": "m"}, "orchestrator": {"train": {"source": [source]}}}
    with pytest.raises(
        ValidationError, match=r"weights\.delta needs the embedded engine, but inference\.engine is 'vllm'"
    ):
        RLConfig.model_validate(
            data | {"trainer": {"weights": {"delta": True}}, "inference": {"engine": "vllm"}}
        )
    with pytest.raises(ValidationError, match=r"weights\.delta = true cannot be used with \[lora\]"):
        trainer_config(tiny_model_dir, tmp_path, lora={}, weights={"delta": True})


async def test_a_vllm_that_is_there_already_refuses_a_delta(tmp_path: Path) -> None:
    (tmp_path / DELTA).write_text(json.dumps({"base": "step_000001", "checksums": {}}))
    async with pool_of(stub := StubVLLM()) as pool:
        with pytest.raises(ReplicaError, match="delta to step_000001, but vLLM loads only whole models"):
            await pool.update(pool.all[0], tmp_path, 2, DEADLINE)
    assert [path for path, _ in stub.calls] == ["/pause?mode=keep"]
