"""Weights old / mu against what sampler and trainer disagree about (SPEC section 5)."""

import torch
from torch import Tensor

from braidrl.configs.trainer.offpolicy import ISCorrectionConfig
from braidrl.trainer.rl.loss import MAX_LOG_RATIO
from braidrl.trainer.rl.sequences import sequence_mean, sequence_sum


def is_correction(
    old: Tensor, mu: Tensor, sequence: Tensor | None, config: ISCorrectionConfig
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Weights float[N], which tokens stay (bool[N]), and metrics, for log-probs float[N] of the rl members.

    Each log-ratio is clamped to +-20. `clip` sets a weight that is out of bounds to the bound; `mask` takes its
    tokens out of loss and denominator. Bounds are inclusive. A token whose log-ratio is not finite gets weight 0
    and takes no part in its sequence's. A metric is the mean of its float[N]: `is_clip_ratio` (out of bounds),
    `is_nan_ratio`.
    """
    log_ratio = old - mu
    finite = torch.isfinite(log_ratio)
    clamped = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)[finite]
    inside = None if sequence is None else sequence[finite]
    if config.level == "sequence":
        clamped = sequence_sum(clamped, inside)
    elif config.level == "geometric":
        clamped = sequence_mean(clamped, inside)

    raw = clamped.exp()  # infinite for a long sequence: above the upper bound, as it should be
    within = (config.lower_bound <= raw) & (raw <= config.upper_bound)
    weights, keep = torch.zeros_like(log_ratio), torch.ones_like(finite)
    weights[finite] = raw.clamp(config.lower_bound, config.upper_bound) if config.action == "clip" else raw
    if config.action == "mask":
        keep[finite] = within
        weights[~keep] = 0
    outside = torch.zeros_like(finite)
    outside[finite] = ~within
    return weights, keep, {"is_clip_ratio": outside.double(), "is_nan_ratio": (~finite).double()}
