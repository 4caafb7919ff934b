"""What protects an rl loss from data that another policy than the trainer's sampled (seed 002, section 1.3)."""

import logging
from typing import Literal, Self

from pydantic import Field, model_validator

from braidrl.configs.core.base import BaseConfig

logger = logging.getLogger(__name__)


class ISCorrectionConfig(BaseConfig):
    """Weigh the loss by old / mu: the trainer before the step over the sampler."""

    level: Literal["token", "sequence", "geometric"] = "token"
    """The ratio of a token, of the whole sequence, or the geometric mean of a sequence's tokens."""
    action: Literal["clip", "mask"] = "clip"
    """A ratio out of bounds is set to the bound, or its tokens leave loss and denominator."""
    lower_bound: float = Field(0.5, ge=0)
    """Lowest ratio that stays as it is."""
    upper_bound: float = Field(2.0, gt=0)
    """Highest ratio that stays as it is."""

    @model_validator(mode="after")
    def _is_a_band(self) -> Self:
        if self.lower_bound > self.upper_bound:
            raise ValueError(
                f"lower_bound ({self.lower_bound}) is above upper_bound ({self.upper_bound}); swap them"
            )
        return self


class M2POConfig(BaseConfig):
    """Leave out the tokens whose log-ratio old / mu is largest until its second moment is small."""

    threshold: float = Field(0.04, ge=0)
    """Mean of log(old / mu)^2 over the tokens that stay, in the whole batch."""


class OPSMConfig(BaseConfig):
    """Drop the policy loss of sequences with a negative advantage that the policy has already moved away from."""

    delta: float = Field(0.1, ge=0)
    """Largest mean log-ratio to the current policy of a sequence that still trains, in nats a token."""
    reference: Literal["old", "rollout"] = "old"
    """Whose log-probs the current ones are compared with: the trainer's before the step, which differ only from the
    second mini batch on, or the sampler's."""


class ReferenceKLConfig(BaseConfig):
    """Keep the policy near a reference that the trainer holds: + coef * KL(policy || reference)."""

    coef: float = Field(0.001, gt=0)
    """Weight of the term."""
    kl_type: Literal["k1", "k2", "k3"] = "k3"
    """Estimator, from the sampled token alone: D, D^2 / 2, or exp(-D) + D - 1 with D = log(policy / reference)."""
    use_unbiased_kl: bool = False
    """Multiply it by the ratio pi / old, differentiated, so that k1 and k3 have the gradient of the exact KL."""
    update_interval: int = Field(0, ge=0)
    """The reference becomes the policy after every n-th step; 0: never."""
    path: str | None = None
    """A Hugging Face folder, or a checkpoint of a run (`outputs/run/checkpoints/step_000100`); None: the policy that
    the run starts from. With `[trainer.lora]`, that one and `model.path` itself need no model of their own."""

    @model_validator(mode="after")
    def _has_a_gradient(self) -> Self:
        if self.kl_type == "k1" and not self.use_unbiased_kl:
            logger.warning(
                "reference_kl: the expected gradient of k1 is 0 without the ratio, so it restrains nothing; set "
                "use_unbiased_kl = true, or kl_type to k2 or k3"
            )
        return self
