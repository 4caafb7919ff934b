"""Admission gates: which finished groups may train."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from braidrl.configs.core.base import BaseConfig


class RewardRange(BaseConfig):
    """Which mean rewards of a group count as neither hopeless nor solved; the bounds are excluded."""

    above: float | None = 0.0
    """The mean must be greater than this ...; None: no bound."""
    below: float | None = 1.0
    """... and less than this; None: no bound."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.above is not None and self.below is not None and self.above >= self.below:
            raise ValueError(
                f"no reward is above {self.above:g} and below {self.below:g}; raise below or lower above"
            )
        return self


class BaseGateConfig(BaseConfig):
    """What every admission gate has."""

    paper: ClassVar[str] = ""
    """Where it comes from: an arXiv number, or a name."""
    gate_class: ClassVar[str] = ""
    """`package.module:Class` of a gate that another package brings (`braidrl.configs.plugins`)."""


class AdvRangeGateConfig(BaseGateConfig):
    """Rejects a group when the advantage of every sampled token lies within a range, ends included."""

    type: Literal["advantage_range"] = "advantage_range"
    reject_min: float = 0.0
    """Lower end of the range ..."""
    reject_max: float = 0.0
    """... and its upper end."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.reject_min > self.reject_max:
            raise ValueError(
                f"reject_min ({self.reject_min:g}) is above reject_max ({self.reject_max:g}), so no group would be "
                "rejected; swap them"
            )
        return self


class OnlineDifficultyGateConfig(RewardRange, BaseGateConfig):
    """Admits a group when its mean reward lies between two bounds, which are excluded."""

    paper: ClassVar[str] = "dynamic sampling (arXiv:2503.14476)"

    type: Literal["online_difficulty"] = "online_difficulty"


GateConfig = Annotated[AdvRangeGateConfig | OnlineDifficultyGateConfig, Field(discriminator="type")]
"""Every built-in gate's config, told apart by `type`; `braidrl.configs.plugins` adds those of other packages."""
