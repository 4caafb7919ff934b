"""Common parts of the clipped surrogates: the log ratio to `old`, and the two-sided clip."""

from typing import NamedTuple

import torch
from torch import Tensor

from braidrl.trainer.rl.loss import MAX_LOG_RATIO, LossInputs, mean


class LogRatio(NamedTuple):
    """x - old at the members where it is finite."""

    tokens: Tensor
    """i64[M]: which tokens these are."""
    clamped: Tensor
    """float[M]: x - old clamped to +-20, differentiable; beyond the clamp without gradient."""
    members: int
    """Members, those that are not finite included: the denominator of metrics."""
    metrics: dict[str, Tensor]
    """`approx_kl` and `nan_ratio`."""


def change_from_old(inputs: LossInputs) -> LogRatio:
    """Return the log ratio to the policy at the start of the step. Raises `ValueError` without `old_logprobs`."""
    if inputs.old_logprobs is None:
        raise ValueError(
            "this loss needs old_logprobs; got None: pass the trainer's log-probs before the step"
        )
    member = inputs.loss_mask.nonzero().squeeze(-1)
    difference = inputs.trainer_logprobs.detach()[member] - inputs.old_logprobs[member]
    tokens = member[torch.isfinite(difference)]
    change = inputs.trainer_logprobs[tokens] - inputs.old_logprobs[tokens]
    clamped = change.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    usual = difference.abs() <= MAX_LOG_RATIO
    metrics = {"approx_kl": mean(-clamped, len(member)), "nan_ratio": mean(~usual)}
    return LogRatio(tokens, clamped, len(member), metrics)


def clipped_gain(ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """min(r A, clip(r, 1 - low, 1 + high) A), float[M], and bool[M]: where the clip is what counts."""
    plain, clipped = ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages
    return torch.minimum(plain, clipped), clipped.detach() < plain.detach()
