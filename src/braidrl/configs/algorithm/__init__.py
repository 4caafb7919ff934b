"""Configs of the algorithms, which assign credit and loss components to the tokens of finished episodes.

Imports `configs.core` and `configs.model`. A block with only a `type` is the algorithm as published.
Start with `base.py`.
"""

from typing import Annotated

from pydantic import Field

from braidrl.configs.algorithm.base import (
    ActionLossType,
    AdvantageNorm,
    Aggregation,
    Barrier,
    BaseAlgorithmConfig,
    SamplingConfig,
)
from braidrl.configs.algorithm.distillation import OPDConfig, OPSDConfig, SFTDistillConfig
from braidrl.configs.algorithm.echo import EchoConfig, EchoFilterConfig, EchoRoleConfig, EchoRolesConfig
from braidrl.configs.algorithm.group import (
    GroupRelativeConfig,
    GRPOConfig,
    HierarchicalGRPOConfig,
    LengthPenaltyConfig,
    LinearPenaltyConfig,
    LinearSubagentPenaltyConfig,
    MaxRLConfig,
    RAEConfig,
)
from braidrl.configs.model import FrozenModelConfig, RendererConfig

__all__ = [
    "ActionLossType",
    "AdvantageNorm",
    "Aggregation",
    "AlgorithmConfig",
    "Barrier",
    "BaseAlgorithmConfig",
    "EchoConfig",
    "EchoFilterConfig",
    "EchoRoleConfig",
    "EchoRolesConfig",
    "FrozenModelConfig",
    "GRPOConfig",
    "GroupRelativeConfig",
    "HierarchicalGRPOConfig",
    "LengthPenaltyConfig",
    "LinearPenaltyConfig",
    "LinearSubagentPenaltyConfig",
    "MaxRLConfig",
    "OPDConfig",
    "OPSDConfig",
    "RAEConfig",
    "RendererConfig",
    "SFTDistillConfig",
    "SamplingConfig",
]

AlgorithmConfig = Annotated[
    GRPOConfig
    | MaxRLConfig
    | RAEConfig
    | HierarchicalGRPOConfig
    | OPDConfig
    | OPSDConfig
    | SFTDistillConfig
    | EchoConfig,
    Field(discriminator="type"),
]
"""Union of the built-in algorithm configs, discriminated by `type`. `braidrl.configs.plugins` adds those of other
packages."""
