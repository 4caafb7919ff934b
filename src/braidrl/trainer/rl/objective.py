"""The whole `rl` component: the configured loss with its protections and regularisers (docs/losses.md)."""

import dataclasses
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from braidrl.configs.trainer.config import TrainerConfig
from braidrl.configs.trainer.offpolicy import OPSMConfig, ReferenceKLConfig
from braidrl.trainer.rl.loss import (
    MAX_LOG_RATIO,
    Loss,
    LossInputs,
    LossOutputs,
    capped_ratio,
    mean,
    mismatch_kl,
    weighted,
)
from braidrl.trainer.rl.losses import make_loss
from braidrl.trainer.rl.offpolicy import opsm


@dataclass(frozen=True)
class RLObjective:
    """A `Loss` that wraps one. Its inputs hold every rl member; those that a mask has taken out are off `loss_mask`."""

    loss: Loss
    opsm: OPSMConfig | None = None
    entropy_coef: float = 0.0
    reference_kl: ReferenceKLConfig | None = None
    reports_mismatch: bool = False
    """True if `is_approx_k3_kl`, an estimate of KL(sampler || old), is reported."""

    @classmethod
    def of(cls, config: TrainerConfig) -> Self:
        """The configured one."""
        recomputed = not config.use_rollout_log_probs and config.compares_with_old
        return cls(make_loss(config.loss), config.opsm, config.entropy_coef, config.reference_kl, recomputed)

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        """Policy loss * OPSM * IS - entropy_coef * entropy + coef * KL, each summed over members with its weight.

        Neither OPSM nor IS touches the regularisers.
        """
        keep, metrics = self._keep(inputs)
        scale = inputs.is_weights if keep is None else keep * _or_one(inputs.is_weights, keep)
        weights = inputs.loss_weights
        if scale is not None:
            weights = scale if weights is None else weights * scale
        outputs = self.loss(dataclasses.replace(inputs, loss_weights=weights))
        loss, terms = self._regularise(inputs)
        terms["pg_loss"] = _mean_loss(outputs.loss, inputs)
        if self.reports_mismatch and inputs.old_logprobs is not None:
            log_ratio = inputs.old_logprobs - inputs.inference_logprobs
            terms["is_approx_k3_kl"] = mean(mismatch_kl(log_ratio[torch.isfinite(log_ratio)]))
        return LossOutputs(outputs.loss + loss, outputs.metrics | metrics | terms)

    def _keep(self, inputs: LossInputs) -> tuple[Tensor | None, dict[str, Tensor]]:
        if self.opsm is None:
            return None, {}
        reference = inputs.inference_logprobs if self.opsm.reference == "rollout" else inputs.old_logprobs
        if reference is None:
            raise ValueError(
                "OPSM needs old_logprobs; got None: pass the trainer's log-probs before the step"
            )
        return opsm(inputs.trainer_logprobs, reference, inputs.advantages, inputs.sequence, self.opsm)

    def _regularise(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = inputs.trainer_logprobs[:0].sum(), {}
        finite = inputs.loss_mask & torch.isfinite(inputs.trainer_logprobs.detach())
        member = finite.nonzero().squeeze(-1)
        if inputs.entropy is not None:
            metrics["entropy/rl"] = mean(inputs.entropy[member])
            if self.entropy_coef:
                entropy = weighted(inputs.entropy[member], inputs.loss_weights, member).sum()
                loss = loss - self.entropy_coef * entropy
        if self.reference_kl is not None and inputs.kl_ref_logprobs is not None:
            if self.reference_kl.use_unbiased_kl and inputs.old_logprobs is not None:
                member = (finite & torch.isfinite(inputs.old_logprobs)).nonzero().squeeze(-1)
            old = None if inputs.old_logprobs is None else inputs.old_logprobs[member]
            kl = reference_kl(
                inputs.trainer_logprobs[member], inputs.kl_ref_logprobs[member], old, self.reference_kl
            )
            loss = loss + self.reference_kl.coef * weighted(kl, inputs.loss_weights, member).sum()
            metrics["reference_kl"] = mean(kl)
        return loss, metrics


def _mean_loss(loss: Tensor, inputs: LossInputs) -> Tensor:
    """The policy loss alone as a metric: its sum, and what the component divides by."""
    weights = torch.ones_like(inputs.advantages) if inputs.loss_weights is None else inputs.loss_weights
    return torch.stack([mean(loss.detach()[None])[0], mean(weights[inputs.loss_mask])[0]])


def _or_one(weights: Tensor | None, like: Tensor) -> Tensor:
    return torch.ones_like(like, dtype=torch.float32) if weights is None else weights


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
