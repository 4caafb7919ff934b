"""Custom losses that the tests load by import path."""

import torch

from braidrl.configs.loss import IPOLossConfig
from braidrl.trainer.rl.loss import LossInputs, LossOutputs
from braidrl.trainer.rl.losses.ipo import ipo_loss

CLIP = 0.2


def ppo_clip_loss(inputs: LossInputs, clip_eps: float = CLIP) -> LossOutputs:
    """Clipped PPO with the sampler's log-probs as the old policy."""
    ratio = torch.exp(inputs.trainer_logprobs - inputs.inference_logprobs)
    clipped = torch.clamp(ratio, 1 - clip_eps, 1 + clip_eps)
    gain = torch.min(ratio * inputs.advantages, clipped * inputs.advantages)
    share = (ratio != clipped)[inputs.loss_mask].float().mean()
    return LossOutputs(loss=-gain[inputs.loss_mask].sum(), metrics={"clip_frac": share})


def policy_gradient(inputs: LossInputs) -> LossOutputs:
    """A custom loss with a metric that only some sequences report."""
    weights = 1.0 if inputs.loss_weights is None else inputs.loss_weights[inputs.loss_mask]
    gain = inputs.advantages[inputs.loss_mask] * inputs.trainer_logprobs[inputs.loss_mask] * weights
    length = inputs.loss_mask.sum().float()
    return LossOutputs(-gain.sum(), {"long" if length > 4 else "short": length})


def ipo_of_my_own(inputs: LossInputs) -> LossOutputs:
    """The default loss as a function of one sequence."""
    return ipo_loss(inputs, IPOLossConfig())
