"""Preparation of a model's layers for training: activation recomputation and compilation."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """The blocks of a transformer, in order."""
    names = model._no_split_modules or ()
    return [module for module in model.modules() if type(module).__name__ in names]


def recompute_layers(model: PreTrainedModel, offload: bool) -> None:
    """Recompute each layer from its input in the backward pass. With `offload`, the input is kept in CPU memory."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
    if offload:
        for module in model.modules():
            if (recompute := getattr(module, "_gradient_checkpointing_func", None)) is not None:
                kept = partial(_offloaded, recompute, torch.cuda.is_available())
                module._gradient_checkpointing_func = kept  # type: ignore[assignment]


def compile_layers(model: PreTrainedModel, device: torch.device) -> None:
    """Compile the layers, before parameters are sharded: rows of any length share their graphs.

    Raises `ValueError` where torch cannot compile for the device.
    """
    check_compiler(device)
    for layer in layers_of(model):
        # the function, not the module: hooks (of sharding) and recomputing stay outside of the graph
        layer.forward = torch.compile(layer.forward, dynamic=True)


def check_compiler(device: torch.device) -> None:
    """Compile one addition. Raises `ValueError` where that fails: rather now than in the first step."""
    try:
        torch.compile(_add_one)(torch.zeros(8, device=device))
    except Exception as error:  # whatever the compiler behind it raises
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ValueError(
            f"trainer.compile = true, but torch.compile does not work on {device.type}: {reason}; install a C++ "
            "compiler (g++, or another that the environment variable CXX names) for a CPU, Triton for a GPU, or "
            "leave compile away"
        ) from error


def _add_one(values: torch.Tensor) -> torch.Tensor:
    return values + 1


def _offloaded(recompute: Callable[..., Any], pin: bool, function: Callable[..., Any], *args: Any) -> Any:
    # a layer that is recomputed keeps nothing but its input, and that under the hooks around it
    with torch.autograd.graph.save_on_cpu(pin_memory=pin):
        return recompute(function, *args)
