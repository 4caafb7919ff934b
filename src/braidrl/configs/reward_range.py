"""A range of rewards."""

from typing import Self

from pydantic import model_validator

from braidrl.configs.base import BaseConfig


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
