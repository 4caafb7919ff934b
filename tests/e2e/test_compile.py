"""`trainer.compile` with the real compiler: equal weights, and no recompilation for other row lengths."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from braidrl.trainer.parallel import Parallel, data_parallel
from braidrl.trainer.rl.step import Learner
from braidrl.trainer.shards import PartsReader
from braidrl.trainer.state.checkpoint import save_checkpoint
from tests.support.ranks import run_ranks
from tests.support.trainer_batches import make_batch, trainer_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ALONE = Parallel(0, 1, torch.device("cpu"))
STEPS = 4


def learn(model: Path, root: Path, parallel: Parallel, **options: Any) -> list[int]:
    """Take steps on batches of growing size and save the weights. Return the number of compiled graphs after each
    step."""
    learner = Learner.load(trainer_config(model, root, micro_batch_tokens=30, **options), parallel)
    graphs = []
    for step in range(1, STEPS + 1):
        learner.step(step, make_batch(step, size=4 + step))
        graphs.append(counters["stats"]["unique_graphs"])
    save_checkpoint(root / "trainer", learner.model, learner.optimizer, STEPS, parallel)
    return graphs


def weights(root: Path) -> dict[str, torch.Tensor]:
    with PartsReader(root / "trainer", "model") as parts:
        return {name: parts.read(name) for name in parts.names()}


def two(model: Path, root: Path) -> None:
    with data_parallel(timeout=600) as parallel:
        learn(model, root, parallel, compile=True, activation_offload=True)


@pytest.fixture(scope="module")
def expected(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    root = tmp_path_factory.mktemp("plain")
    learn(tiny_model_dir, root, ALONE)
    return weights(root)


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5, msg=name)


def test_compiled_layers_learn_the_same_from_rows_of_any_length(
    tiny_model_dir, expected, tmp_path: Path
) -> None:
    counters.clear()
    graphs = learn(tiny_model_dir, tmp_path, ALONE, compile=True)
    assert graphs[0] > 0 and graphs == [graphs[0]] * STEPS
    assert_close(weights(tmp_path), expected)


def test_compiled_adapters_learn_the_same(tiny_model_dir: Path, tmp_path: Path) -> None:
    adapter = {"lora": {"rank": 4}, "reference_kl": {"coef": 0.1}}
    learn(tiny_model_dir, tmp_path / "plain", ALONE, **adapter)
    counters.clear()
    graphs = learn(tiny_model_dir, tmp_path / "compiled", ALONE, compile=True, **adapter)
    assert graphs[0] > 0 and graphs == [graphs[0]] * STEPS
    assert_close(weights(tmp_path / "compiled"), weights(tmp_path / "plain"))


def test_compiled_layers_of_two_processes_learn_the_same(tiny_model_dir, expected, tmp_path: Path) -> None:
    run_ranks(2, two, tiny_model_dir, tmp_path, timeout=600)
    assert_close(weights(tmp_path), expected)


def test_without_a_compiler_nothing_starts(tmp_path: Path) -> None:
    program = "\n".join(
        [
            "import torch",
            "from braidrl.trainer.model.layers import check_compiler",
            "check_compiler(torch.device('cpu'))",
        ]
    )
    environment = {**os.environ, "CXX": "no-such-compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("ValueError: trainer.compile = true, but torch.compile does not work on cpu: ")
    assert "install a C++ compiler" in last
