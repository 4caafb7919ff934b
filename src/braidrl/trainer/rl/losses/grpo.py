"""The clipped surrogate of `grpo` (docs/losses.md, arXiv:2402.03300)."""

import torch

from braidrl.configs.loss import GRPOLossConfig
from braidrl.trainer.rl.loss import LossInputs, LossOutputs, mean, weighted
from braidrl.trainer.rl.losses.surrogate import change_from_old, clipped_gain


def grpo_loss(inputs: LossInputs, config: GRPOLossConfig) -> LossOutputs:
    """Sum over members of -u * w: u = min(r A, clip(r, 1 - low, 1 + high) A), and at least c A where A < 0.

    r = exp(x - old), the difference clamped to +-20. A member whose difference is not finite has no loss and
    counts in `nan_ratio`. Metrics over members: `approx_kl` (mean of old - x), `clip_ratio`,
    `dual_clip_ratio`, `nan_ratio` (not finite, or beyond the clamp).
    """
    change = change_from_old(inputs)
    advantages = inputs.advantages[change.tokens]
    gain, clipped = clipped_gain(
        change.clamped.exp(), advantages, config.clip_ratio_low, config.clip_ratio_high
    )
    bound = config.clip_ratio_c * advantages
    dual = (advantages < 0) & (gain.detach() < bound)
    gain = torch.where(dual, bound, gain)
    loss = -weighted(gain, inputs.loss_weights, change.tokens).sum()
    metrics = {
        "clip_ratio": mean(clipped, change.members),
        "dual_clip_ratio": mean(dual, change.members),
    }
    return LossOutputs(loss, change.metrics | metrics)
