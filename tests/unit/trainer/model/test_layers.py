"""Recomputed layers: stored activations and their device."""

from pathlib import Path
from typing import Any

import pytest
import torch

from braidrl.configs.sft import SFTConfig
from braidrl.trainer.model.layers import layers_of
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.step import Learner
from braidrl.trainer.sft.train import trainer_config as sft_trainer_config
from tests.support.trainer_batches import make_batch, trainer_config

ALONE = Parallel(0, 1, torch.device("cpu"))


def test_only_the_inputs_of_recomputed_layers_go_to_the_cpu(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[torch.Size] = []

    class Watched(torch.autograd.graph.save_on_cpu):
        def __init__(self, pin_memory: bool) -> None:
            super().__init__(pin_memory)
            pack = self.pack_hook

            def watched(tensor: torch.Tensor) -> Any:
                kept.append(tensor.shape)
                return pack(tensor)

            self.pack_hook = watched

    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", Watched)
    plain, offloaded = (
        Learner.load(trainer_config(tiny_model_dir, tmp_path, activation_offload=offload), ALONE)
        for offload in (False, True)
    )
    batch = make_batch(1)
    expected, row = plain.step(1, batch), offloaded.step(1, batch)
    assert row["loss"] == expected["loss"] and row["grad_norm"] == expected["grad_norm"]
    inputs = row["tokens/packed"] * offloaded.model.config.hidden_size * len(layers_of(offloaded.model))
    assert sum(shape.numel() for shape in kept) == inputs


def test_fine_tuning_has_the_same_switches(tmp_path: Path) -> None:
    switches: dict[str, Any] = {
        "activation_offload": True,
        "compile": True,
        "parallel": {"processes": 4, "shard_size": 2, "reduce_each_micro_batch": True},
        "optim": {"offload": True},
    }
    config = SFTConfig.model_validate({"model": {"path": "model"}, "data": {"path": "data.jsonl"}} | switches)
    found = sft_trainer_config(config)
    assert found.activation_offload and found.compile and found.optim.offload
    assert found.parallel == config.parallel
