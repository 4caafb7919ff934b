"""INTELLECT policy optimisation (docs/losses.md)."""

from braidrl.configs.loss import IPOLossConfig
from braidrl.trainer.rl.loss import LossInputs, LossOutputs, probability_change
from braidrl.trainer.rl.losses.trust_region import trust_region_loss


def ipo_loss(inputs: LossInputs, config: IPOLossConfig) -> LossOutputs:
    """Trust tokens whose probability has changed by at most `eps`: |exp(x) - exp(mu)| <= eps.

    Loss and metrics are those of `trust_region_loss`.
    """
    change = probability_change(inputs.trainer_logprobs.detach(), inputs.inference_logprobs)
    return trust_region_loss(inputs, change, -config.eps, config.eps, config.adv_tau)
