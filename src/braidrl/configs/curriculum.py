"""Curricula: which task comes next, and which finished groups may train."""

from pydantic import Field

from braidrl.configs.base import BaseConfig
from braidrl.configs.plugins import InstalledGateConfig, InstalledSamplerConfig
from braidrl.configs.samplers import StandardSamplerConfig


class CurriculumConfig(BaseConfig):
    """One task sampler and any number of admission gates of a training source."""

    sampler: InstalledSamplerConfig = Field(default_factory=StandardSamplerConfig)
    """Chooses tasks."""
    gates: dict[str, InstalledGateConfig] = Field(default_factory=dict)
    """By name. A group trains only if each of them admits it."""
