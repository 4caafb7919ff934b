"""The importance-weighted policy gradient that `ipo` and `icepop` share; they differ in whom they trust."""

import torch
from torch import Tensor

from braidrl.trainer.rl.loss import (
    MAX_LOG_RATIO,
    LossInputs,
    LossOutputs,
    capped_ratio,
    mean,
    mismatch_kl,
    total,
    weighted,
)


def trust_region_loss(
    inputs: LossInputs, change: Tensor, low: float, high: float, adv_tau: float
) -> LossOutputs:
    """Return the sum over members with low <= change <= high of -adv_tau * A * exp(x - mu) * w (docs/losses.md).

    `change` is float[N], the distance of x from mu, without gradient. NaN is rejected. The region ignores the
    sign of the advantage. A member whose x or mu is not finite is rejected and counted. Metrics are over members:
    `is_masked` (rejected), of which `is_masked_low` / `is_masked_high` (fell or rose too far),
    `masked_mismatch_kl`, `unmasked_mismatch_kl`, and the counts `nonfinite_tokens`, `ratio_capped`.
    """
    member = inputs.loss_mask.nonzero().squeeze(-1)
    x, mu, change = inputs.trainer_logprobs[member], inputs.inference_logprobs[member], change[member]
    finite = torch.isfinite(x.detach()) & torch.isfinite(mu)
    keep = finite & (low <= change) & (change <= high)

    log_ratio = x[keep] - mu[keep]
    gain = adv_tau * inputs.advantages[member][keep] * capped_ratio(log_ratio)
    loss = -weighted(gain, inputs.loss_weights, member[keep]).sum()

    rejected = finite & ~keep
    metrics = {
        "is_masked": mean(~keep),
        "is_masked_low": mean(rejected & (change < low)),
        "is_masked_high": mean(rejected & (change > high)),
        "masked_mismatch_kl": mean(mismatch_kl(x.detach()[rejected] - mu[rejected])),
        "unmasked_mismatch_kl": mean(mismatch_kl(log_ratio.detach())),
        "nonfinite_tokens": total(~finite),
        "ratio_capped": total(log_ratio.detach() > MAX_LOG_RATIO),
    }
    return LossOutputs(loss, metrics)
