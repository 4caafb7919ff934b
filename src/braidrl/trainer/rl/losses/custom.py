"""Losses of the user's own (seed 000, "Custom Loss")."""

import dataclasses
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from braidrl.configs.loss import CustomLossConfig
from braidrl.trainer.rl.loss import LossInputs, LossOutputs, mean


def custom_loss(
    inputs: LossInputs, function: Callable[..., LossOutputs], kwargs: dict[str, Any]
) -> LossOutputs:
    """The sum of `function(sequence, **kwargs).loss` over the sequences that have a member.

    Each scalar metric is averaged over those calls. Raises `TypeError` naming the function when it does not
    return `LossOutputs` with a scalar loss.
    """
    loss = inputs.trainer_logprobs[:0].sum()
    metrics: dict[str, list[torch.Tensor]] = {}
    for sequence in _sequences(inputs):
        outputs = function(sequence, **kwargs)
        _check(outputs, function)
        loss = loss + outputs.loss
        for name, value in outputs.metrics.items():
            metrics.setdefault(name, []).append(torch.as_tensor(value).detach())
    return LossOutputs(loss, {name: mean(torch.stack(values)) for name, values in metrics.items()})


def load_function(config: CustomLossConfig) -> Callable[..., LossOutputs]:
    """The configured function. Raises `ValueError` when it cannot be imported or called."""
    try:
        function = _resolve(config.import_path)
    except (ImportError, AttributeError, ValueError, OSError) as error:
        raise ValueError(
            f"trainer.loss.import_path = {config.import_path!r} cannot be imported: {error}; give "
            f"my_module.function of an importable module, or path/to/file.py:function"
        ) from error
    if not callable(function):
        raise ValueError(
            f"trainer.loss.import_path = {config.import_path!r} is {function!r}, which is no function"
        )
    return function


def _resolve(import_path: str) -> Any:
    file, _, name = import_path.rpartition(":")
    if not file.endswith(".py"):
        return pkgutil.resolve_name(import_path)
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _sequences(inputs: LossInputs) -> Iterator[LossInputs]:
    if inputs.sequence is None:
        if inputs.loss_mask.any():
            yield inputs
        return
    streams = {name: value for name, value in vars(inputs).items() if value is not None}
    for number in inputs.sequence[inputs.loss_mask].unique():
        tokens = (inputs.sequence == number).nonzero().squeeze(-1)
        yield dataclasses.replace(inputs, **{name: value[tokens] for name, value in streams.items()})


def _check(outputs: Any, function: Callable[..., LossOutputs]) -> None:
    name = getattr(function, "__qualname__", repr(function))
    if not isinstance(outputs, LossOutputs) or outputs.loss.ndim:
        seen = (
            f"loss of shape {tuple(outputs.loss.shape)}"
            if isinstance(outputs, LossOutputs)
            else repr(outputs)
        )
        raise TypeError(
            f"the loss {name} returned {seen}; return LossOutputs(loss=a scalar sum, metrics={{...}})"
        )
