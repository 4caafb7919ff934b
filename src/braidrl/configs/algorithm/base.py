"""Base class of all algorithm configs: loss component, barrier and sampling model."""

from collections.abc import Collection
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from braidrl.configs.core.base import BaseConfig
from braidrl.configs.model import FrozenModelConfig

ActionLossType = Literal["rl", "ce", "ref_kl"]
"""Loss components of the trainer (`docs/losses.md`)."""

Aggregation = Literal["token", "prompt"]
"""Unit of equal weight in the rl loss: the token, or the prompt (group of siblings)."""

Barrier = Literal["episode", "group", "batch"]
"""Episodes that must end before credit is assigned: the episode itself, all episodes of its task, or all episodes of
the source in the batch (`docs/architecture.md`, Time)."""
AdvantageNorm = Literal["group_mean", "group_zscore", "batch_zscore", "batch_mean", "none"]
"""Normalisation of rewards to advantages: subtract the mean of the group or batch (`mean`), also divide by the standard
deviation (`zscore`), or leave the reward unchanged (`none`)."""


class SamplingConfig(BaseConfig):
    """Model that generates the training rollouts."""

    source: Literal["policy"] | FrozenModelConfig = "policy"
    """`"policy"` for the live policy, or the block of a frozen model."""

    @field_validator("source", mode="before")
    @classmethod
    def _check_source(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "policy":
            raise ValueError(
                f'{value!r} is neither "policy" nor a frozen model; set "policy", or a block with the `name` and '
                "`base_url` of a frozen model"
            )
        return value


class BaseAlgorithmConfig(BaseConfig):
    """Base class of all algorithm configs."""

    action_loss_type: ClassVar[ActionLossType] = "rl"
    """Loss component of sampled tokens."""
    needs_group: ClassVar[bool] = False
    """True if credit is relative to siblings, so that a group of one has no signal."""
    barrier: ClassVar[Barrier] = "group"
    """Barrier of the widest hook that the algorithm overrides: `score_episode`, `score_group` or `score_batch`."""
    needs_model: ClassVar[bool] = False
    """True if the algorithm calls a served model, so that recorded episodes cannot be scored offline."""
    paper: ClassVar[str] = ""
    """Source of the algorithm: an arXiv number or a name."""
    algorithm_class: ClassVar[str] = ""
    """Import path `package.module:Class` of the implementation, if another package provides it
    (`braidrl.configs.plugins`)."""

    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    """Model that generates the rollouts."""

    @property
    def rl_aggregation(self) -> Aggregation | None:
        """Aggregation of rl tokens, or None if the algorithm has none."""
        return "token" if self.action_loss_type == "rl" else None

    @property
    def needs_siblings(self) -> bool:
        """True if siblings are compared under the current settings. `needs_group` by default."""
        return self.needs_group

    @property
    def waits_for(self) -> Barrier:
        """Barrier under the current settings: `barrier`, or a narrower one."""
        return self.barrier

    def check_agents(self, agents: Collection[str]) -> None:
        """Raise `ValueError` if the algorithm does not support an environment with these agents."""

    @model_validator(mode="after")
    def _check_sampling_source(self) -> Self:
        if self.sampling.source != "policy" and self.action_loss_type != "ce":
            raise ValueError(
                f"sampling.source is a frozen model, but this algorithm trains the {self.action_loss_type} "
                "component, which requires log-probs sampled from the live policy; remove sampling.source, or use "
                'type = "sft" to imitate the frozen model'
            )
        return self
