"""User-defined losses (docs/losses.md)."""

import dataclasses
import inspect
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch

from braidrl.configs.loss import CustomLossConfig
from braidrl.trainer.rl.loss import LossFunctionError, LossInputs, LossOutputs, mean, total
from braidrl.utils.functions import load_function


def custom_loss(
    inputs: LossInputs, function: Callable[..., LossOutputs], kwargs: dict[str, Any]
) -> LossOutputs:
    """The sum of `function(sequence, **kwargs).loss` over the sequences that have a member.

    A token with a log-prob (of trainer, sampler or `old`) that is not finite is kept from the function, for which a
    mask would not do: 0 times infinity is NaN. Members among them count in `nonfinite_tokens`.

    A scalar metric is averaged over those calls; float[2], a sum and its denominator, is added up. Raises
    `TypeError` naming the function when it returns anything else, and `LossFunctionError` with the sequence where
    it raises.
    """
    loss = inputs.trainer_logprobs[:0].sum()
    finite = torch.isfinite(inputs.trainer_logprobs.detach()) & torch.isfinite(inputs.inference_logprobs)
    if inputs.old_logprobs is not None:
        finite = finite & torch.isfinite(inputs.old_logprobs)
    metrics = {"nonfinite_tokens": [total(inputs.loss_mask & ~finite)]}
    for number, sequence in _sequences(_take(inputs, finite)):
        outputs = _call(function, sequence, kwargs, number)
        loss = loss + outputs.loss
        for name, value in outputs.metrics.items():
            tensor = torch.as_tensor(value, device=loss.device).detach()
            metrics.setdefault(name, []).append(tensor if tensor.ndim else mean(tensor))
    return LossOutputs(loss, {name: torch.stack(pairs).sum(0) for name, pairs in metrics.items()})


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
        what = f"the loss {_name(function)} raised {type(error).__name__}: {error} ({_line(error)})"
        raise LossFunctionError(what, number) from error
    _check(outputs, function)
    return outputs


def _sequences(inputs: LossInputs) -> Iterator[tuple[int, LossInputs]]:
    """Number and tensors of each sequence that has a member."""
    if inputs.sequence is None:
        if inputs.loss_mask.any():
            yield 0, inputs
        return
    for number in inputs.sequence[inputs.loss_mask].unique().tolist():
        yield number, _take(inputs, inputs.sequence == number)


def _take(inputs: LossInputs, chosen: torch.Tensor) -> LossInputs:
    """Some of the tokens (bool[N])."""
    tokens = chosen.nonzero().squeeze(-1)
    streams = {name: value[tokens] for name, value in vars(inputs).items() if value is not None}
    return dataclasses.replace(inputs, **streams)


def _check(outputs: Any, function: Callable[..., LossOutputs]) -> None:
    if not isinstance(outputs, LossOutputs):
        seen = repr(outputs)
    elif not isinstance(outputs.loss, torch.Tensor) or outputs.loss.ndim:
        seen = f"the loss {outputs.loss!r}"
    elif odd := [
        name for name, value in outputs.metrics.items() if torch.as_tensor(value).shape not in ((), (2,))
    ]:
        seen = f"the metric {odd[0]!r} of shape {tuple(torch.as_tensor(outputs.metrics[odd[0]]).shape)}"
    else:
        return
    raise TypeError(
        f"the loss {_name(function)} returned {seen}; return LossOutputs(loss=a scalar tensor that is a sum, "
        "metrics={name: a scalar, or a sum and its denominator as float[2]})"
    )


def _line(error: Exception) -> str:
    """The innermost line of the user's file."""
    called, *frames = traceback.extract_tb(error.__traceback__)
    own = frames[0].filename if frames else called.filename
    line = [frame for frame in (called, *frames) if frame.filename == own][-1]
    return f"{line.filename}, line {line.lineno}"


def _name(function: Callable[..., LossOutputs]) -> str:
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    return f"{module}.{name}" if name else repr(function)
