"""The base of every algorithm config: training signal, barrier and the model that samples."""

from collections.abc import Collection
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from braidrl.configs.core.base import BaseConfig
from braidrl.configs.model import FrozenModelConfig

ActionLossType = Literal["rl", "ce", "ref_kl"]
"""The trainer's loss components (seed 000, "Loss Components")."""

Aggregation = Literal["token", "prompt"]
"""How rl tokens are weighed: every token alike, or every prompt alike."""

Barrier = Literal["episode", "group", "batch"]
"""Whose episodes credit waits for: nobody else's, those of one task, or all of the environment's in one optimizer
step."""
AdvantageNorm = Literal["group_mean", "group_zscore", "batch_zscore", "batch_mean", "none"]
"""What a reward is measured against: the mean of its group or batch, in units of their deviation or not; or nothing."""


class SamplingConfig(BaseConfig):
    """Which model generates the training rollouts."""

    source: Literal["policy"] | FrozenModelConfig = "policy"
    """`"policy"`: the live policy, or an inline frozen model."""

    @field_validator("source", mode="before")
    @classmethod
    def _policy_or_frozen(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "policy":
            raise ValueError(
                f'{value!r} is neither "policy" nor a frozen model; a frozen model is a block with `name` and '
                "`base_url`"
            )
        return value


class BaseAlgorithmConfig(BaseConfig):
    """What every algorithm has."""

    action_loss_type: ClassVar[ActionLossType] = "rl"
    """The loss component that consumes sampled tokens."""
    needs_group: ClassVar[bool] = False
    """Whether credit is relative to siblings, so that a group of one carries no signal."""
    barrier: ClassVar[Barrier] = "group"
    """The most that credit waits for, as the algorithm's widest hook has it: `score_episode`, `score_group`,
    `score_batch`."""
    needs_model: ClassVar[bool] = False
    """Whether the algorithm asks a served model, so that recorded episodes alone cannot be scored."""
    paper: ClassVar[str] = ""
    """Where the algorithm comes from: an arXiv number, or a name."""
    algorithm_class: ClassVar[str] = ""
    """`package.module:Class` of an algorithm that another package brings (`braidrl.configs.plugins`)."""

    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    """Which model generates the rollouts."""

    @property
    def rl_aggregation(self) -> Aggregation | None:
        """How this algorithm weighs rl tokens; None where it has none."""
        return "token" if self.action_loss_type == "rl" else None

    @property
    def needs_siblings(self) -> bool:
        """Whether these settings compare siblings: `needs_group`, unless one of them says otherwise."""
        return self.needs_group

    @property
    def waits_for(self) -> Barrier:
        """What credit waits for with these settings: `barrier`, or less."""
        return self.barrier

    def check_agents(self, agents: Collection[str]) -> None:
        """Raise `ValueError` where an environment with these agents does not suit the algorithm."""

    @model_validator(mode="after")
    def _frozen_samples_feed_ce_alone(self) -> Self:
        if self.sampling.source != "policy" and self.action_loss_type != "ce":
            raise ValueError(
                f"sampling.source names a frozen model, but this algorithm trains the {self.action_loss_type} "
                "component, which needs the live policy's own sampling log-probs; remove sampling.source, or use "
                'type = "sft" to imitate the frozen model'
            )
        return self
