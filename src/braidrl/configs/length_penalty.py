"""Length penalties of the GRPO family: what long rollouts pay before the baseline."""

from typing import Annotated, Literal

from pydantic import Field

from braidrl.configs.base import BaseConfig


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
