"""Algorithms that compare rewards: the GRPO family, MaxRL and RAE, and length penalties."""

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from braidrl.configs.algorithm.base import AdvantageNorm, Aggregation, Barrier, BaseAlgorithmConfig
from braidrl.configs.core.base import BaseConfig


class LinearPenaltyConfig(BaseConfig):
    """Penalty on long rollouts, scaled by the mean reward of the group."""

    type: Literal["linear"] = "linear"
    num_output_tokens_weight: float = Field(0.25, ge=0)
    """Penalty of the rollout with the most sampled tokens."""
    num_input_tokens_weight: float = Field(0.1, ge=0)
    """Penalty of the rollout with the most unsampled context tokens."""
    num_turns_weight: float = Field(0.1, ge=0)
    """Penalty of the rollout with the most turns."""


class LinearSubagentPenaltyConfig(BaseConfig):
    """Linear penalty with a separate weight for tokens of subagents."""

    type: Literal["linear-subagent"] = "linear-subagent"
    num_output_tokens_weight: float = Field(0.25, ge=0)
    """Penalty of the rollout with the most sampled tokens."""
    num_input_tokens_weight: float = Field(0.1, ge=0)
    """Penalty of the rollout with the most unsampled context tokens."""
    num_turns_weight: float = Field(0.1, ge=0)
    """Penalty of the rollout with the most turns, including those of subagents."""
    subagent_token_weight: float = Field(0.0, ge=0)
    """Weight of a token of a subagent. 0: not counted. 1: counted like any other."""


LengthPenaltyConfig = Annotated[
    LinearPenaltyConfig | LinearSubagentPenaltyConfig, Field(discriminator="type")
]
"""Union of the length penalty configs, discriminated by `type`. A block without `type` is linear."""


class GroupRelativeConfig(BaseAlgorithmConfig):
    """Base class of the GRPO family: rewards relative to those of the group or batch."""

    needs_group: ClassVar[bool] = True
    barrier: ClassVar[Barrier] = "batch"

    advantage_norm: AdvantageNorm = "group_mean"
    """Normalisation of rewards: subtract the mean (`mean`), also divide by the standard deviation (`zscore`), over the
    group or over the source's traces in the batch. `none`: the advantage is the reward."""
    length_penalty: LengthPenaltyConfig | None = None
    """Length penalty to subtract from rewards before the baseline. An empty block is `linear`. None: off."""
    length_weighted_baseline: bool = False
    """Weight the mean of `group_mean` by trainable tokens, so that advantages sum to zero over the tokens of a
    group."""
    loss_aggregation: Aggregation = "token"
    """Unit of equal weight in the rl loss. `token`: every rl token. `prompt`: every group, regardless of its length."""

    @field_validator("length_penalty", mode="before")
    @classmethod
    def _linear_by_default(cls, value: Any) -> Any:
        return {"type": "linear", **value} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _check_baseline(self) -> Self:
        if self.length_weighted_baseline and self.advantage_norm != "group_mean":
            raise ValueError(
                f'length_weighted_baseline = true requires advantage_norm = "group_mean" (got '
                f'"{self.advantage_norm}"); remove length_weighted_baseline, or set advantage_norm = "group_mean"'
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
    """Group Relative Policy Optimization: reward minus the mean reward of the group, or another normalisation."""

    paper: ClassVar[str] = "arXiv:2402.03300"

    type: Literal["grpo"] = "grpo"


class MaxRLConfig(BaseAlgorithmConfig):
    """Maximum-likelihood RL: reward minus the mean of the group, divided by that mean."""

    needs_group: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv:2602.02710"

    type: Literal["max_rl"] = "max_rl"


class RAEConfig(BaseAlgorithmConfig):
    """Role-conditioned advantage estimation: reward minus a running mean of the same agent's rewards."""

    barrier: ClassVar[Barrier] = "batch"
    paper: ClassVar[str] = "arXiv:2506.24119"

    type: Literal["rae"] = "rae"
    decay: float = Field(0.95, ge=0, lt=1)
    """Weight of the old running mean when a trace updates it (alpha in SPIRAL)."""


class HierarchicalGRPOConfig(BaseAlgorithmConfig):
    """GRPO for proposer-solver environments: compares the solvers of one problem, and proposers across problems."""

    paper: ClassVar[str] = "GRPO"

    type: Literal["hierarchical_grpo"] = "hierarchical_grpo"
    episode_agents: list[str] = Field(default=["solver"], min_length=1)
    """Names of agents to compare within an episode. Other agents are compared across the group."""

    def check_agents(self, agents: Collection[str]) -> None:
        if missing := [name for name in self.episode_agents if name not in agents]:
            raise ValueError(
                f"the environment has no agent {missing[0]!r}, only {', '.join(map(repr, agents))}; "
                "hierarchical_grpo is for proposer-solver environments: set episode_agents to the solvers' name, "
                'or use type = "grpo"'
            )
