"""Protections against off-policy data (docs/losses.md): importance weights old / mu, M2PO (second-moment trust policy
optimisation, arXiv:2510.01161) and OPSM (off-policy sequence masking). None of them carries a gradient.
"""

import torch
from torch import Tensor

from braidrl.configs.trainer.offpolicy import ISCorrectionConfig, M2POConfig, OPSMConfig
from braidrl.trainer.rl.loss import MAX_LOG_RATIO, mean, sequence_mean, sequence_sum


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


def m2po(old: Tensor, mu: Tensor, config: M2POConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the rl members of the whole batch to keep (bool[N]), and metrics. Log-probs are float[N].

    The largest (old - mu)^2 are removed until the mean of the rest is at most `threshold`. One token always stays;
    of equal ones, the earlier. Non-finite values are removed first. A metric is the mean of its float[N] over the
    tokens that are not NaN: `m2_before`, `m2_after` (over finite members), `m2po_clip_ratio`.
    """
    squares = (old - mu).double().square()
    finite = torch.isfinite(squares)
    ordered, order = squares[finite].sort(stable=True)
    means = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1, device=old.device)
    # the means of ever more of the smallest never fall, so those within the threshold come first
    kept = max(int((means <= config.threshold).sum()), min(1, len(ordered)))
    keep = torch.zeros_like(finite)
    keep[finite.nonzero().squeeze(-1)[order[:kept]]] = True
    metrics = {
        "m2_before": squares.where(finite, torch.nan),
        "m2_after": squares.where(keep, torch.nan),
        "m2po_clip_ratio": (~keep).double(),
    }
    return keep, metrics


def opsm(
    x: Tensor, reference: Tensor, advantages: Tensor, sequence: Tensor | None, config: OPSMConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the rl members that keep their policy loss (bool[N]), and metrics. All inputs are float[N] of the members.

    A token is dropped if its advantage is negative and the mean of reference - x over its sequence is above `delta`:
    the policy has already moved away from it. Non-finite log-probs are left out of the mean. The metric
    `opsm_clipfrac` is the share of sequences that lose a token.
    """
    gone = reference - x.detach()
    finite = torch.isfinite(gone)
    kl = torch.zeros_like(gone)
    kl[finite] = sequence_mean(gone[finite], None if sequence is None else sequence[finite])
    drop = (advantages < 0) & (kl > config.delta)
    owner = torch.zeros_like(drop, dtype=torch.long) if sequence is None else sequence
    sequences, index = owner.unique(return_inverse=True)
    lost = torch.zeros(len(sequences), dtype=torch.bool, device=x.device)
    lost[index[drop]] = True
    return ~drop, {"opsm_clipfrac": mean(lost)}
