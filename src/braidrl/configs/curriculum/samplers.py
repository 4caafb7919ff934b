"""Configs of task samplers, which select the next task of a source."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from braidrl.configs.core.base import BaseConfig
from braidrl.configs.curriculum.gates import RewardRange


class BaseSamplerConfig(BaseConfig):
    """Base class of all task sampler configs."""

    finite_only: ClassVar[bool] = False
    """True if the sampler requires a finite taskset."""
    paper: ClassVar[str] = ""
    """Source of the sampler: an arXiv number or a name."""
    sampler_class: ClassVar[str] = ""
    """Import path `package.module:Class` of the implementation, if another package provides it
    (`braidrl.configs.plugins`)."""


class StandardSamplerConfig(BaseSamplerConfig):
    """Tasks in the order of the taskset. A finite taskset repeats from its start."""

    type: Literal["standard"] = "standard"


class PoolConfig(BaseConfig):
    """Pool of tasks whose latest mean reward is at most a threshold, and above that of the next lower pool."""

    threshold: float
    """Inclusive upper bound of the mean reward."""
    weight: float = Field(1.0, ge=0)
    """Sampling weight of each task in the pool. A task that has not been sampled yet has weight 1. 0: never sample."""


class DifficultyPoolSamplerConfig(BaseSamplerConfig):
    """Random tasks of a finite taskset, weighted by the latest mean reward of each task."""

    finite_only: ClassVar[bool] = True

    type: Literal["difficulty_pool"] = "difficulty_pool"
    pools: dict[str, PoolConfig] = Field(min_length=1)
    """Pools by name. A task above all thresholds belongs to the pool with the highest one."""

    @model_validator(mode="after")
    def _check_pools(self) -> Self:
        names: dict[float, str] = {}
        for name, pool in self.pools.items():
            if (other := names.setdefault(pool.threshold, name)) != name:
                raise ValueError(
                    f"pools {other!r} and {name!r} have the same threshold {pool.threshold:g}, so one of them would "
                    "have no tasks; change one threshold or remove a pool"
                )
        if not any(pool.weight for pool in self.pools.values()):
            raise ValueError(
                "every pool has weight 0, so no task could be sampled a second time; set the weight of a pool above 0"
            )
        return self


class ReplaySamplerConfig(RewardRange, BaseSamplerConfig):
    """Tasks in the order of the taskset, mixed with repetitions of recent, partially solved tasks."""

    type: Literal["replay"] = "replay"
    probability: float = Field(0.25, ge=0, lt=1)
    """Probability of taking the next task from the replay buffer, if it is not empty."""
    capacity: int = Field(256, ge=1)
    """Maximum number of tasks in the replay buffer. The oldest task is removed first."""


SamplerConfig = Annotated[
    StandardSamplerConfig | DifficultyPoolSamplerConfig | ReplaySamplerConfig, Field(discriminator="type")
]
"""Union of the built-in sampler configs, discriminated by `type`. `braidrl.configs.plugins` adds those of other
packages."""
