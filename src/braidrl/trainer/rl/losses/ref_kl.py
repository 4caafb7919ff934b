"""The `ref_kl` component: reverse KL to a reference as the policy-gradient signal (docs/losses.md)."""

import torch

from braidrl.trainer.rl.loss import LossInputs, LossOutputs, capped_ratio, mean, probability_change, total

MAX_PROBABILITY_DROP = 0.2


def ref_kl_loss(inputs: LossInputs) -> LossOutputs:
    """Return the sum over members with exp(x) - exp(mu) >= -0.2 of -sg(ref - x) * exp(x - mu) * w.

    A member whose x or mu is not finite is rejected and counted. `ref_logprobs` is finite at members (checked by
    `pack`). Metrics: `ref_kl`, the mean of x - ref over finite members (an estimate of KL(policy || reference)),
    `ref_kl/is_masked`, the rejected share, and the count `ref_kl/nonfinite_tokens`.
    """
    if inputs.ref_logprobs is None:
        raise ValueError("the ref_kl component needs ref_logprobs; got None: ship the reference's log-probs")
    member = inputs.loss_mask
    x, mu, ref = (
        s[member] for s in (inputs.trainer_logprobs, inputs.inference_logprobs, inputs.ref_logprobs)
    )
    finite = torch.isfinite(x.detach()) & torch.isfinite(mu)
    keep = finite & (probability_change(x.detach(), mu) >= -MAX_PROBABILITY_DROP)

    signal = ref[keep] - x.detach()[keep]
    if inputs.loss_weights is not None:
        signal = signal * inputs.loss_weights[member][keep]
    loss = -(signal * capped_ratio(x[keep] - mu[keep])).sum()
    metrics = {
        "ref_kl": mean((x.detach() - ref)[finite]),
        "ref_kl/is_masked": mean(~keep),
        "ref_kl/nonfinite_tokens": total(~finite),
    }
    return LossOutputs(loss, metrics)
