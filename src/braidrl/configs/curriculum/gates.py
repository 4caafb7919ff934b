"""Configs of admission gates, which select the finished groups that may train."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from braidrl.configs.core.base import BaseConfig


class RewardRange(BaseConfig):
    """Open interval of mean rewards at which a group counts as partially solved."""

    above: float | None = 0.0
    """Exclusive lower bound of the mean reward. None: no bound."""
    below: float | None = 1.0
    """Exclusive upper bound of the mean reward. None: no bound."""

    @model_validator(mode="after")
    def _check_interval(self) -> Self:
        if self.above is not None and self.below is not None and self.above >= self.below:
            raise ValueError(
                f"no reward is above {self.above:g} and below {self.below:g}; raise below or lower above"
            )
        return self


class BaseGateConfig(BaseConfig):
    """Base class of all admission gate configs."""

    paper: ClassVar[str] = ""
    """Source of the gate: an arXiv number or a name."""
    gate_class: ClassVar[str] = ""
    """Import path `package.module:Class` of the implementation, if another package provides it
    (`braidrl.configs.plugins`)."""


class AdvRangeGateConfig(BaseGateConfig):
    """Reject a group if the advantage of every sampled token is within a closed interval."""

    type: Literal["advantage_range"] = "advantage_range"
    reject_min: float = 0.0
    """Inclusive lower bound of the interval."""
    reject_max: float = 0.0
    """Inclusive upper bound of the interval."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.reject_min > self.reject_max:
            raise ValueError(
                f"reject_min ({self.reject_min:g}) is above reject_max ({self.reject_max:g}), so no group would be "
                "rejected; swap them"
            )
        return self


class OnlineDifficultyGateConfig(RewardRange, BaseGateConfig):
    """Admit a group if its mean reward is strictly between two bounds."""

    paper: ClassVar[str] = "dynamic sampling (arXiv:2503.14476)"

    type: Literal["online_difficulty"] = "online_difficulty"


GateConfig = Annotated[AdvRangeGateConfig | OnlineDifficultyGateConfig, Field(discriminator="type")]
"""Union of the built-in gate configs, discriminated by `type`. `braidrl.configs.plugins` adds those of other
packages."""
