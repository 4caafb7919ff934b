"""Algorithms: which model samples, and how a finished episode becomes a per-token signal.

Picking a `type` with no other key is the algorithm; every further key is the user's own assembly.
"""

from typing import ClassVar, Literal

from pydantic import Field

from braidrl.configs.base import BaseConfig

ActionLossType = Literal["rl", "ce", "ref_kl"]
"""The trainer's loss components (seed 000, "Loss Components")."""


class FrozenModelConfig(BaseConfig):
    """A frozen model behind an OpenAI-compatible endpoint that somebody else runs."""

    name: str
    """Model name that the endpoint serves."""
    base_url: str | list[str]
    """One address or several replicas, each ending in `/v1`."""


class SamplingConfig(BaseConfig):
    """Which model generates the training rollouts."""

    source: Literal["policy"] | FrozenModelConfig = "policy"
    """`"policy"`: the live policy, or an inline frozen model."""


class BaseAlgorithmConfig(BaseConfig):
    """What every algorithm has."""

    action_loss_type: ClassVar[ActionLossType] = "rl"
    """The loss component that consumes sampled tokens."""
    needs_group: ClassVar[bool] = False
    """Whether credit is relative to siblings, so that a group of one carries no signal."""

    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    """Which model generates the rollouts."""


class GRPOConfig(BaseAlgorithmConfig):
    """Group-relative policy optimisation: reward minus the mean reward of the group."""

    needs_group: ClassVar[bool] = True

    type: Literal["grpo"] = "grpo"


AlgorithmConfig = GRPOConfig
"""Every algorithm's config, told apart by `type`."""
