"""INTELLECT policy optimisation (seed 000, "IPO Loss"; SPEC section 2)."""

import torch

from braidrl.configs.loss import IPOLossConfig
from braidrl.trainer.rl.loss import (
    MAX_LOG_RATIO,
    LossInputs,
    LossOutputs,
    capped_ratio,
    mean,
    mismatch_kl,
    probability_change,
    total,
)


def ipo_loss(inputs: LossInputs, config: IPOLossConfig) -> LossOutputs:
    """Sum over members with |exp(x) - exp(mu)| <= eps of -adv_tau * A * exp(x - mu) * w.

    The trust region ignores the advantage's sign. A member whose x or mu is not finite is rejected and
    counted. Metrics are over members: `is_masked` (rejected), of which `is_masked_low` / `is_masked_high`
    (probability fell or rose too far), `masked_mismatch_kl`, `unmasked_mismatch_kl`, and the counts
    `nonfinite_tokens`, `ratio_capped`.
    """
    member = inputs.loss_mask
    x, mu = inputs.trainer_logprobs[member], inputs.inference_logprobs[member]
    finite = torch.isfinite(x.detach()) & torch.isfinite(mu)
    change = probability_change(x.detach(), mu)
    keep = finite & (change.abs() <= config.eps)

    log_ratio = x[keep] - mu[keep]
    signal = config.adv_tau * inputs.advantages[member][keep]
    if inputs.loss_weights is not None:
        signal = signal * inputs.loss_weights[member][keep]
    loss = -(signal * capped_ratio(log_ratio)).sum()

    rejected = finite & ~keep
    metrics = {
        "is_masked": mean(~keep),
        "is_masked_low": mean(rejected & (change < 0)),
        "is_masked_high": mean(rejected & (change > 0)),
        "masked_mismatch_kl": mean(mismatch_kl(x.detach()[rejected] - mu[rejected])),
        "unmasked_mismatch_kl": mean(mismatch_kl(log_ratio.detach())),
        "nonfinite_tokens": total(~finite),
        "ratio_capped": total(log_ratio.detach() > MAX_LOG_RATIO),
    }
    return LossOutputs(loss, metrics)
