"""IcePop, with or without score centering (docs/losses.md, arXiv:2510.18855, arXiv:2609.20807)."""

import math

from braidrl.configs.loss import IcePopLossConfig
from braidrl.trainer.rl.loss import LossInputs, LossOutputs
from braidrl.trainer.rl.losses.score_centering import score_centering_loss
from braidrl.trainer.rl.losses.trust_region import trust_region_loss


def icepop_loss(inputs: LossInputs, config: IcePopLossConfig) -> LossOutputs:
    """Trust tokens whose ratio is in a band: ratio_low <= exp(x - mu) <= ratio_high, bounds included.

    Loss and metrics are those of `trust_region_loss`; with score centering its term and metrics are added.
    """
    log_ratio = inputs.trainer_logprobs.detach() - inputs.inference_logprobs
    low = math.log(config.ratio_low) if config.ratio_low > 0 else -math.inf
    outputs = trust_region_loss(inputs, log_ratio, low, math.log(config.ratio_high), config.adv_tau)
    if not config.score_centering:
        return outputs
    centering = score_centering_loss(inputs, config)
    # its value means nothing, only its gradient: what is reported is the loss of the policy
    loss = outputs.loss + centering.loss - centering.loss.detach()
    return LossOutputs(loss, outputs.metrics | centering.metrics)
