"""Curricula: which task comes next, and which finished groups may train."""

from typing import Any

from pydantic import Field, field_validator

from braidrl.configs.base import BaseConfig
from braidrl.configs.inherit import OFF
from braidrl.configs.plugins import InstalledGateConfig, InstalledSamplerConfig
from braidrl.configs.samplers import StandardSamplerConfig


class CurriculumConfig(BaseConfig):
    """One task sampler and any number of admission gates of a training source."""

    sampler: InstalledSamplerConfig = Field(default_factory=StandardSamplerConfig)
    """Chooses tasks."""
    gates: dict[str, InstalledGateConfig] = Field(default_factory=dict)
    """By name; a group trains only if each of them admits it. `NAME = "None"` switches an inherited one off."""

    @field_validator("gates", mode="before", json_schema_input_type=dict[str, InstalledGateConfig | None])
    @classmethod
    def _without_those_that_are_off(cls, gates: Any) -> Any:
        if not isinstance(gates, dict):
            return gates
        return {name: gate for name, gate in gates.items() if gate not in (None, OFF)}
