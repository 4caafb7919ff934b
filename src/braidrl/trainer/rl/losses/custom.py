"""Losses of the user's own (seed 000, "Custom Loss")."""

import dataclasses
import inspect
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch

from braidrl.configs.loss import CustomLossConfig
from braidrl.trainer.rl.loss import LossFunctionError, LossInputs, LossOutputs, mean
from braidrl.utils.functions import load_function


def custom_loss(
    inputs: LossInputs, function: Callable[..., LossOutputs], kwargs: dict[str, Any]
) -> LossOutputs:
    """The sum of `function(sequence, **kwargs).loss` over the sequences that have a member.

    Each scalar metric is averaged over those calls. Raises `TypeError` naming the function when it does not
    return `LossOutputs` with a scalar loss, and `LossFunctionError` with the sequence where it raises.
    """
    loss = inputs.trainer_logprobs[:0].sum()
    metrics: dict[str, list[torch.Tensor]] = {}
    for number, sequence in _sequences(inputs):
        outputs = _call(function, sequence, kwargs, number)
        loss = loss + outputs.loss
        for name, value in outputs.metrics.items():
            metrics.setdefault(name, []).append(torch.as_tensor(value).detach())
    return LossOutputs(loss, {name: mean(torch.stack(values)) for name, values in metrics.items()})


def load_loss(config: CustomLossConfig) -> Callable[..., LossOutputs]:
    """The configured function. Raises `ValueError` when it cannot be imported, or does not take the `kwargs`."""
    try:
        function = load_function(config.import_path)
    except ValueError as error:
        raise ValueError(f"trainer.loss.import_path: {error}") from error
    signature = inspect.signature(function)
    try:
        signature.bind(None, **config.kwargs)
    except TypeError as error:
        raise ValueError(
            f"trainer.loss.kwargs = {config.kwargs} do not fit {config.import_path}{signature}: {error}"
        ) from error
    return function


def _call(
    function: Callable[..., LossOutputs], sequence: LossInputs, kwargs: dict[str, Any], number: int
) -> LossOutputs:
    try:
        outputs = function(sequence, **kwargs)
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        raise LossFunctionError(
            f"the loss {_name(function)} raised {type(error).__name__}: {error} ({line.filename}, line {line.lineno})",
            number,
        ) from error
    _check(outputs, function)
    return outputs


def _sequences(inputs: LossInputs) -> Iterator[tuple[int, LossInputs]]:
    """Number and tensors of each sequence that has a member."""
    if inputs.sequence is None:
        if inputs.loss_mask.any():
            yield 0, inputs
        return
    streams = {name: value for name, value in vars(inputs).items() if value is not None}
    for number in inputs.sequence[inputs.loss_mask].unique().tolist():
        tokens = (inputs.sequence == number).nonzero().squeeze(-1)
        chosen = {name: value[tokens] for name, value in streams.items()}
        yield number, dataclasses.replace(inputs, **chosen)


def _check(outputs: Any, function: Callable[..., LossOutputs]) -> None:
    if not isinstance(outputs, LossOutputs) or outputs.loss.ndim:
        seen = (
            f"loss of shape {tuple(outputs.loss.shape)}"
            if isinstance(outputs, LossOutputs)
            else repr(outputs)
        )
        raise TypeError(
            f"the loss {_name(function)} returned {seen}; return LossOutputs(loss=a scalar sum, metrics={{...}})"
        )


def _name(function: Callable[..., LossOutputs]) -> str:
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    return f"{module}.{name}" if name else repr(function)
