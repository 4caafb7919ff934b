"""Terms beside the policy loss (SPEC section 6): per-token values; the rl loss aggregates them as its own tokens."""

import torch
from torch import Tensor

from braidrl.configs.trainer.offpolicy import ReferenceKLConfig
from braidrl.trainer.rl.loss import MAX_LOG_RATIO, capped_ratio


def reference_kl(x: Tensor, ref: Tensor, old: Tensor | None, config: ReferenceKLConfig) -> Tensor:
    """Estimate of KL(policy || reference) at each token, float[N], differentiable in x; all log-probs finite.

    With D = x - ref: k1 is D, k2 is D^2 / 2, k3 is exp(-D) + D - 1. `use_unbiased_kl` multiplies it by
    exp(x - old), which is differentiated too: the gradient is ratio * (K + K'). Exponents are capped at 20.
    """
    difference = x - ref
    if config.kl_type == "k1":
        kl = difference
    elif config.kl_type == "k2":
        kl = difference.square() / 2
    else:
        kl = torch.expm1((-difference).clamp_max(MAX_LOG_RATIO)) + difference
    if not config.use_unbiased_kl:
        return kl
    if old is None:
        raise ValueError("use_unbiased_kl needs old_logprobs; got None: pass the log-probs before the step")
    return capped_ratio(x - old) * kl
