"""Protections of the rl loss against off-policy samples (`docs/losses.md`, Protections)."""

import logging
from typing import Literal, Self

from pydantic import Field, model_validator

from braidrl.configs.core.base import BaseConfig

logger = logging.getLogger(__name__)


class ISCorrectionConfig(BaseConfig):
    """Importance-sampling correction: weight the loss by old / mu (trainer before the step / sampler)."""

    level: Literal["token", "sequence", "geometric"] = "token"
    """Ratio of the token, product over the sequence, or geometric mean over the sequence."""
    action: Literal["clip", "mask"] = "clip"
    """Treatment of ratios out of bounds. `clip`: set the ratio to the bound. `mask`: remove its tokens from loss and
    denominator."""
    lower_bound: float = Field(0.5, ge=0)
    """Lower bound of the ratio."""
    upper_bound: float = Field(2.0, gt=0)
    """Upper bound of the ratio."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.lower_bound > self.upper_bound:
            raise ValueError(
                f"lower_bound ({self.lower_bound}) is above upper_bound ({self.upper_bound}); swap them"
            )
        return self


class M2POConfig(BaseConfig):
    """M2PO: drop the tokens with the largest log-ratios until the second moment of the rest is small
    (arXiv:2510.01161)."""

    threshold: float = Field(0.04, ge=0)
    """Maximum mean of log(old / mu)^2 over the remaining tokens of the whole batch."""


class OPSMConfig(BaseConfig):
    """Off-policy sequence masking: no policy loss for sequences with a negative advantage that the policy has already
    moved away from."""

    delta: float = Field(0.1, ge=0)
    """Maximum mean of log(reference / policy) over a sequence with a negative advantage, in nats per token. Sequences
    above it have no policy loss."""
    reference: Literal["old", "rollout"] = "old"
    """Policy that the current one is compared with. `old`: the trainer before the step, which differs only from the
    second mini batch on. `rollout`: the sampler."""


class ReferenceKLConfig(BaseConfig):
    """KL penalty towards a reference model in the trainer: + coef * KL(policy || reference)."""

    coef: float = Field(0.001, gt=0)
    """Coefficient of the penalty."""
    kl_type: Literal["k1", "k2", "k3"] = "k3"
    """KL estimator on the sampled token. With D = log(policy / reference): D (`k1`), D^2 / 2 (`k2`), exp(-D) + D - 1
    (`k3`)."""
    use_unbiased_kl: bool = False
    """Multiply the estimate by the differentiated ratio pi / old, so that `k1` and `k3` have the gradient of the exact
    KL."""
    update_interval: int = Field(0, ge=0)
    """Replace the reference by the policy after every n-th step. 0: never."""
    path: str | None = None
    """Hugging Face folder, or checkpoint of a run (`outputs/run/checkpoints/step_000100`). None: the initial policy.
    With `[trainer.lora]`, None and `model.path` need no second model in memory."""

    @model_validator(mode="after")
    def _warn_without_gradient(self) -> Self:
        if self.kl_type == "k1" and not self.use_unbiased_kl:
            logger.warning(
                'reference_kl: the penalty has no effect, because the expected gradient of kl_type = "k1" is 0 '
                'without the ratio; set use_unbiased_kl = true, or kl_type = "k2" or "k3"'
            )
        return self
