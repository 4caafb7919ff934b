"""The model that is trained, and the frozen one that it may be kept near."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import PreTrainedModel

from braidrl.configs.model import ModelConfig
from braidrl.configs.trainer.config import TrainerConfig
from braidrl.configs.trainer.lora import LoRAConfig
from braidrl.trainer.model.forward import DeviceMicroBatch, TokenOutputs, token_logprobs
from braidrl.trainer.model.layers import compile_layers, layers_of, recompute_layers
from braidrl.trainer.model.loading import load_model
from braidrl.trainer.parallel import Parallel, shard
from braidrl.trainer.shards import load_weights
from braidrl.utils.model_source import MASTERS

if TYPE_CHECKING:
    from braidrl.trainer.model.lora import ReferenceAdapter


class Policy(nn.Module):
    """A model and its exact forward as one module, so that shards are whole where they are used."""

    def __init__(self, model: PreTrainedModel, compute_dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.compute_dtype = compute_dtype

    if TYPE_CHECKING:

        def __call__(self, micro: DeviceMicroBatch) -> TokenOutputs: ...

    def forward(self, micro: DeviceMicroBatch) -> TokenOutputs:
        outputs = token_logprobs(self.model, micro, self.compute_dtype)
        # sharding hooks into what a module returns, which must not be a view
        return TokenOutputs(outputs.logprobs.clone(), outputs.entropy.clone(), outputs.head_logprobs)

    @torch.no_grad()
    def copy_(self, other: "Policy") -> None:
        """Take another one's weights; both are sharded alike."""
        for mine, its in zip(self.parameters(), other.parameters(), strict=True):
            mine.copy_(its)


def load_policy(config: TrainerConfig, parallel: Parallel) -> Policy:
    """The base model, or with `lora` its adapter, ready to train, sharded over the processes."""
    model = load_model(config.model, parallel.loads_on, longest_path=config.seq_len)
    if config.lora is not None:
        _add_adapters(model, config, config.lora)
    if config.activation_checkpointing or config.activation_offload:
        recompute_layers(model, config.activation_offload)
    if config.compile:
        compile_layers(model, parallel.device)
    return _shard(Policy(model, getattr(torch, config.model.dtype)), parallel)


def _add_adapters(model: PreTrainedModel, config: TrainerConfig, lora: LoRAConfig) -> None:
    from braidrl.trainer.model.lora import add_adapter, add_reference  # only here: peft is an extra

    add_adapter(model, lora, config.model.path, getattr(torch, config.model.dtype))
    if config.reference_kl is not None and config.shares_reference:
        add_reference(model, start=config.reference_kl.path is None)


def load_reference(
    config: TrainerConfig, parallel: Parallel, policy: Policy
) -> "Policy | ReferenceAdapter | None":
    """The frozen model of `reference_kl`, sharded as the policy; None where there is none.

    Raises `FileNotFoundError` where its path holds neither a model nor a checkpoint, and `ValueError` where a
    checkpoint's weights do not fit the policy's architecture.
    """
    if config.reference_kl is None:
        return None
    if config.shares_reference:
        from braidrl.trainer.model.lora import ReferenceAdapter

        return ReferenceAdapter(policy)
    path = Path(config.reference_kl.path or config.model.path)
    if any((path / "trainer").glob(MASTERS)):
        model = load_model(config.model, parallel.loads_on, longest_path=config.seq_len)
        load_weights(path / "trainer", model)
    elif (path / "config.json").is_file():
        source = ModelConfig.model_validate(config.model.model_dump() | {"path": str(path)})
        model = load_model(source, parallel.loads_on, longest_path=config.seq_len)
    else:
        raise FileNotFoundError(
            f"trainer.reference_kl.path = {str(path)!r} holds neither config.json (a Hugging Face folder) nor "
            f"trainer/{MASTERS} (a checkpoint, outputs/run/checkpoints/step_000100)"
        )
    model.requires_grad_(False)
    if config.compile:
        compile_layers(model, parallel.device)
    return _shard(Policy(model, getattr(torch, config.model.dtype)), parallel)


def _shard(policy: Policy, parallel: Parallel) -> Policy:
    shard(policy, layers_of(policy.model), parallel, policy.compute_dtype)
    return policy
