"""The `rl` loss of the trainer. The `ce` and `ref_kl` components are fixed and take no settings."""

from typing import Literal

from pydantic import Field

from braidrl.configs.base import BaseConfig


class IPOLossConfig(BaseConfig):
    """INTELLECT policy optimisation: importance-weighted policy gradient with a trust region in probability."""

    type: Literal["ipo"] = "ipo"
    eps: float = Field(0.3, ge=0, le=1)
    """Largest absolute change of a token's probability that still trains."""
    adv_tau: float = Field(1.0, gt=0)
    """Factor on the advantage."""


LossConfig = IPOLossConfig
"""Every rl loss's config, told apart by `type`."""
