"""The formulas of docs/sizing.md, compared with a real model, and its tables."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.sizing import QWEN3, Shape, memory
from braidrl.trainer.model.forward import to_device
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.batch import StepBatch
from braidrl.trainer.rl.step import Learner
from tests.support.paths import REPOSITORY
from tests.support.trainer_batches import make_sample, trainer_config


@pytest.mark.parametrize(("dtype", "compute"), [("float32", 4), ("bfloat16", 2)])
def test_a_layer_keeps_what_the_arithmetic_says(
    tiny_model_dir: Path, tmp_path: Path, dtype: str, compute: int
) -> None:
    learner = Learner.load(
        trainer_config(tiny_model_dir, tmp_path, dtype, seq_len=512), Parallel(0, 1, torch.device("cpu"))
    )
    shape = Shape.of(json.loads((tiny_model_dir / "config.json").read_text()))
    vectors = sum(parameter.numel() for parameter in learner.model.parameters() if parameter.ndim == 1)
    assert shape.parameters == sum(parameter.numel() for parameter in learner.model.parameters()) - vectors
    row = learner._rows(StepBatch([make_sample(1, "ce", prompt=2, completion=400)]))[0]
    tokens, kept = len(row.token_ids), {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tokens in tensor.shape:
            kept[tensor.untyped_storage().data_ptr()] = (
                tensor  # keep it alive, so that its address is not reused
            )
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        learner.policy(to_device(row, "cpu"))
    outside = 4 * 4 * shape.hidden  # final norm
    found = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / tokens - outside
    assert found / shape.layers == pytest.approx(shape.layer_activations(compute, 4), rel=0.1)


def test_states_are_divided_and_each_switch_saves_what_it_says() -> None:
    shape = QWEN3["8B"]
    one, eight = (memory(shape, ranks) for ranks in (1, 8))
    assert one.states == 16 * shape.parameters and eight.states == one.states / 8
    saved = eight.states - memory(shape, 8, offload=True).states
    assert saved == 8 * shape.parameters / 8
    assert eight.whole - memory(shape, 8, reduce_each=True).whole > 2 * shape.parameters
    kept = eight.token - memory(shape, 8, activation_offload=True).token
    assert kept == 4 * shape.hidden * shape.layers


def test_the_table_in_the_document_is_what_the_script_prints() -> None:
    output = subprocess.run(
        [sys.executable, "benchmarks/sizing.py"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    document = (REPOSITORY / "docs" / "sizing.md").read_text()
    missing = [line for line in output.splitlines() if line and line not in document]
    assert missing == []


def test_no_shape_is_a_surprise() -> None:
    """Parameter counts of the published models, in 1e9, within one percent."""
    published = {"0.6B": 0.596, "1.7B": 1.72, "8B": 8.19, "32B": 32.76}
    assert {name: shape.parameters / 1e9 for name, shape in QWEN3.items()} == pytest.approx(
        published, rel=0.01
    )
    assert np.all([shape.cache > 0 for shape in QWEN3.values()])
