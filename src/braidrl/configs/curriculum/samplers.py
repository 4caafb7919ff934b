"""Task samplers: which task of a source comes next."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from braidrl.configs.core.base import BaseConfig
from braidrl.configs.curriculum.gates import RewardRange


class BaseSamplerConfig(BaseConfig):
    """What every task sampler has."""

    finite_only: ClassVar[bool] = False
    """Whether it needs to know all tasks."""
    paper: ClassVar[str] = ""
    """Where it comes from: an arXiv number, or a name."""
    sampler_class: ClassVar[str] = ""
    """`package.module:Class` of a sampler that another package brings (`braidrl.configs.plugins`)."""


class StandardSamplerConfig(BaseSamplerConfig):
    """Tasks in source order; a finite taskset starts over when it ends."""

    type: Literal["standard"] = "standard"


class PoolConfig(BaseConfig):
    """Tasks whose latest mean reward is at most a threshold, and above that of the next lower pool."""

    threshold: float
    """Highest reward of the pool, inclusive."""
    weight: float = Field(1.0, ge=0)
    """Chance of each of its tasks, relative to a task that was not played yet (1.0); 0: never."""


class DifficultyPoolSamplerConfig(BaseSamplerConfig):
    """Tasks of a finite taskset at random, weighted by how well they went the last time."""

    finite_only: ClassVar[bool] = True

    type: Literal["difficulty_pool"] = "difficulty_pool"
    pools: dict[str, PoolConfig] = Field(min_length=1)
    """The pools by name. A task above every threshold belongs to the highest one."""

    @model_validator(mode="after")
    def _are_apart(self) -> Self:
        names: dict[float, str] = {}
        for name, pool in self.pools.items():
            if (other := names.setdefault(pool.threshold, name)) != name:
                raise ValueError(
                    f"pools {other!r} and {name!r} have the same threshold {pool.threshold:g}, so one of them has no "
                    "tasks; move or remove one"
                )
        if not any(pool.weight for pool in self.pools.values()):
            raise ValueError(
                "every pool has weight 0, so nothing is left once each task was played; give one a weight above 0"
            )
        return self


class ReplaySamplerConfig(RewardRange, BaseSamplerConfig):
    """Tasks in source order, and now and then a recent one that is neither solved nor hopeless."""

    type: Literal["replay"] = "replay"
    probability: float = Field(0.25, ge=0, lt=1)
    """Chance that a task comes from the buffer, as long as that holds any."""
    capacity: int = Field(256, ge=1)
    """Most tasks in the buffer; the oldest one makes room."""


SamplerConfig = Annotated[
    StandardSamplerConfig | DifficultyPoolSamplerConfig | ReplaySamplerConfig, Field(discriminator="type")
]
"""Every built-in sampler's config, told apart by `type`; `braidrl.configs.plugins` adds those of other packages."""
