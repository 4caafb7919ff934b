"""Algorithms that compare rewards: GRPO and its relatives, MaxRL and RAE, and their length penalties."""

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from braidrl.configs.algorithm.base import AdvantageNorm, Aggregation, Barrier, BaseAlgorithmConfig
from braidrl.configs.core.base import BaseConfig


class LinearPenaltyConfig(BaseConfig):
    """A penalty on long rollouts, scaled by the group's mean reward."""

    type: Literal["linear"] = "linear"
    num_output_tokens_weight: float = Field(0.25, ge=0)
    """Penalty of the rollout with the most sampled tokens."""
    num_input_tokens_weight: float = Field(0.1, ge=0)
    """Penalty of the rollout with the most context tokens that it did not sample."""
    num_turns_weight: float = Field(0.1, ge=0)
    """Penalty of the rollout with the most turns."""


class LinearSubagentPenaltyConfig(BaseConfig):
    """The linear penalty with the tokens of subagents at a weight of their own."""

    type: Literal["linear-subagent"] = "linear-subagent"
    num_output_tokens_weight: float = Field(0.25, ge=0)
    """Penalty of the rollout with the most sampled tokens."""
    num_input_tokens_weight: float = Field(0.1, ge=0)
    """Penalty of the rollout with the most context tokens that it did not sample."""
    num_turns_weight: float = Field(0.1, ge=0)
    """Penalty of the rollout with the most turns; subagents' turns count like all others."""
    subagent_token_weight: float = Field(0.0, ge=0)
    """How much a token of a subagent counts: 0 not at all, 1 like any other."""


LengthPenaltyConfig = Annotated[
    LinearPenaltyConfig | LinearSubagentPenaltyConfig, Field(discriminator="type")
]
"""Every length penalty's config, told apart by `type`; a block without one is linear."""


class GroupRelativeConfig(BaseAlgorithmConfig):
    """What the GRPO family has in common: rewards measured against those of the group, or of the batch."""

    needs_group: ClassVar[bool] = True
    barrier: ClassVar[Barrier] = "batch"

    advantage_norm: AdvantageNorm = "group_mean"
    """What is taken off a reward, and whether it is divided by a standard deviation: of its group, or of the
    environment's traces in the optimizer step; `none` leaves the reward as it is."""
    length_penalty: LengthPenaltyConfig | None = None
    """Shaping of the rewards before the baseline; an empty block is linear."""
    length_weighted_baseline: bool = False
    """Weigh the baseline of `group_mean` by trainable tokens, so that a group's advantages sum to zero over them."""
    loss_aggregation: Aggregation = "token"
    """`token`: every rl token weighs the same. `prompt`: every group weighs the same, however long it is."""

    @field_validator("length_penalty", mode="before")
    @classmethod
    def _linear_by_default(cls, value: Any) -> Any:
        return {"type": "linear", **value} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _one_baseline(self) -> Self:
        if self.length_weighted_baseline and self.advantage_norm != "group_mean":
            raise ValueError(
                f'length_weighted_baseline is a baseline of the group, and advantage_norm = "{self.advantage_norm}" '
                'has another: remove length_weighted_baseline, or set advantage_norm = "group_mean"'
            )
        return self

    @property
    def rl_aggregation(self) -> Aggregation:
        return self.loss_aggregation

    @property
    def needs_siblings(self) -> bool:
        return self.advantage_norm.startswith("group")

    @property
    def waits_for(self) -> Barrier:
        return "batch" if self.advantage_norm.startswith("batch") else "group"


class GRPOConfig(GroupRelativeConfig):
    """Group-relative policy optimisation: reward minus the mean reward of the group, or another of its kin."""

    paper: ClassVar[str] = "arXiv:2402.03300"

    type: Literal["grpo"] = "grpo"


class MaxRLConfig(BaseAlgorithmConfig):
    """Maximum-likelihood RL: reward minus the group's mean, divided by that mean."""

    needs_group: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv:2602.02710"

    type: Literal["max_rl"] = "max_rl"


class RAEConfig(BaseAlgorithmConfig):
    """Role-conditioned advantage estimation: reward minus a running mean of the same agent's rewards."""

    barrier: ClassVar[Barrier] = "batch"
    paper: ClassVar[str] = "arXiv:2506.24119"

    type: Literal["rae"] = "rae"
    decay: float = Field(0.95, ge=0, lt=1)
    """Share of the old baseline that stays at each trace (SPIRAL's alpha)."""


class HierarchicalGRPOConfig(BaseAlgorithmConfig):
    """GRPO for proposer-solver environments: solvers within a proposed problem, proposers across them."""

    paper: ClassVar[str] = "GRPO"

    type: Literal["hierarchical_grpo"] = "hierarchical_grpo"
    episode_agents: list[str] = Field(default=["solver"], min_length=1)
    """Agents that are compared within one episode; all others are compared across the group."""

    def check_agents(self, agents: Collection[str]) -> None:
        if missing := [name for name in self.episode_agents if name not in agents]:
            raise ValueError(
                f"the environment has no agent {missing[0]!r}, only {', '.join(map(repr, agents))}; "
                "hierarchical_grpo is for proposer-solver environments: set episode_agents to the solvers' name, "
                'or use type = "grpo"'
            )
