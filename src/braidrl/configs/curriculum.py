"""Curricula: which task comes next, and which finished groups may train."""

from typing import Literal

from pydantic import Field

from braidrl.configs.base import BaseConfig


class StandardSamplerConfig(BaseConfig):
    """Tasks in source order; a finite taskset starts over when it ends."""

    type: Literal["standard"] = "standard"


class CurriculumConfig(BaseConfig):
    """One task sampler (and, with later algorithms, named admission gates) of a training source."""

    sampler: StandardSamplerConfig = Field(default_factory=StandardSamplerConfig)
    """Chooses tasks."""
