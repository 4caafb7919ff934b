"""Score centering: subtract the expected update under the sampler from that of every token (docs/losses.md)."""

import torch
from torch import Tensor

from braidrl.configs.loss import IcePopLossConfig
from braidrl.trainer.rl.loss import LossInputs, LossOutputs, mean, weighted

MIN_TAIL = 1e-6
"""Floor of the probability outside the head, of the sampler and of the policy."""


def score_centering_loss(inputs: LossInputs, config: IcePopLossConfig) -> LossOutputs:
    """Sum over members, rejected ones too, of adv_tau * A * w * sum over the head of sg(c_v) * log p_v.

    p is the current policy, q the sampler, whose tail is modelled as rho * p: with f(u) = u inside the ratio
    band and 0 outside, c_v = q_v f(p_v / q_v) - rho f(1 / rho) p_v. The tail folds into the head because
    sum_v p_v d log p_v = 0. Metrics, over members: `score_centering/head_mass` (sum of q over the head),
    `score_centering/tail_scale` (rho), `score_centering/logit_correction_l1` (L1 norm of the logit gradient,
    before the advantage). Raises `ValueError` without heads.
    """
    member = inputs.loss_mask.nonzero().squeeze(-1)
    logp, logq = inputs.head_trainer_logprobs, inputs.head_inference_logprobs
    if logp is None or logq is None:
        if not len(member):  # a row without members says nothing about heads
            logp = logq = inputs.advantages.new_zeros(len(inputs.advantages), 0)
        else:
            raise ValueError(
                "score centering needs the sampler's head at every rl member and the batch has none; sample with "
                "loss.score_centering = true from the start, so that heads are captured"
            )
    logp, logq = logp[member], logq[member]
    coefficients, metrics = _correction(logp.detach(), logq, config)
    # pads have log p = 0 and the coefficient 0
    centered = config.adv_tau * inputs.advantages[member] * (coefficients * logp).sum(-1)
    return LossOutputs(weighted(centered, inputs.loss_weights, member).sum(), metrics)


def _correction(logp: Tensor, logq: Tensor, config: IcePopLossConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """c float[M, K] and metrics; log-probs float[M, K], a pad has logq -inf."""
    real = torch.isfinite(logq)
    p, q = (torch.where(real, logprobs.exp(), 0) for logprobs in (logp, logq))
    head_p, head_q = p.sum(-1, keepdim=True), q.sum(-1, keepdim=True)
    rho = (1 - head_q).clamp_min(MIN_TAIL) / (1 - head_p).clamp_min(MIN_TAIL)
    # q f(p/q) is p where the ratio is trusted; rho f(1/rho) is 1 where the tail's is
    trusted = real & _inside(p, q, config)
    tail = _inside(torch.ones_like(rho), rho, config).to(p.dtype)
    coefficients = torch.where(real, trusted * p - tail * p, 0)
    # the expected update has the logit gradient p_j (a_j - S), S being the mass of the accepted, a_j 0 or 1
    accepted = ((trusted * p).sum(-1) + (tail * (1 - head_p)).squeeze(-1)).clamp(0, 1)
    metrics = {
        "score_centering/head_mass": mean(head_q.squeeze(-1)),
        "score_centering/tail_scale": mean(rho.squeeze(-1)),
        "score_centering/logit_correction_l1": mean(2 * accepted * (1 - accepted)),
    }
    return coefficients, metrics


def _inside(p: Tensor, q: Tensor, config: IcePopLossConfig) -> Tensor:
    """True where the ratio p / q is in the band, computed without division."""
    return (config.ratio_low * q <= p) & (p <= config.ratio_high * q)
