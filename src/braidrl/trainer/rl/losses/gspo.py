"""Group sequence policy optimisation (docs/losses.md, arXiv:2507.18071)."""

import torch

from braidrl.configs.loss import GSPOLossConfig
from braidrl.trainer.rl.loss import LossInputs, LossOutputs, mean, sequence_mean, weighted
from braidrl.trainer.rl.losses.surrogate import change_from_old, clipped_gain


def gspo_loss(inputs: LossInputs, config: GSPOLossConfig) -> LossOutputs:
    """Sum over members of -w * min(s A, clip(s, 1 - low, 1 + high) A), routed through each token's own x.

    s = exp(mean of x - old over the members of the sequence), each difference clamped to +-20. The value of a
    token is s * exp(x - sg(x)) = s, its gradient s. Metrics as for `grpo`, without a dual clip.
    """
    change = change_from_old(inputs)
    x = inputs.trainer_logprobs[change.tokens]
    sequence = None if inputs.sequence is None else inputs.sequence[change.tokens]
    ratio = sequence_mean(change.clamped.detach(), sequence).exp() * torch.exp(x - x.detach())
    gain, clipped = clipped_gain(
        ratio, inputs.advantages[change.tokens], config.clip_ratio_low, config.clip_ratio_high
    )
    loss = -weighted(gain, inputs.loss_weights, change.tokens).sum()
    return LossOutputs(loss, change.metrics | {"clip_ratio": mean(clipped, change.members)})
