"""Scoring recorded episodes again."""

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from braidrl.configs.algorithm import GRPOConfig
from braidrl.configs.core.base import BaseConfig
from braidrl.configs.plugins import ALGORITHMS, InstalledAlgorithmConfig


class ScoreConfig(BaseConfig):
    """`braid score EPISODES`: run an algorithm over recorded episodes, without any model."""

    episodes: Path
    """A run folder, or a JSONL file of its `episodes/train`; the first word of the command line."""
    source: str | None = None
    """Only the episodes of this source; None: all, each source with an algorithm of its own."""
    algo: InstalledAlgorithmConfig = GRPOConfig()
    """The algorithm."""
    against: InstalledAlgorithmConfig | None = None
    """A second one, to compare it with."""
    show: int = Field(10, ge=0)
    """Most groups that are printed, evenly spread over the record; the summary is of all."""
    output: Path | None = None
    """New JSONL file for the signals of every token, one line a trainable branch."""

    @field_validator("algo", "against", mode="before")
    @classmethod
    def _needs_episodes_alone(cls, value: Any) -> Any:
        known = ALGORITHMS.get(value.get("type", "grpo")) if isinstance(value, dict) else None
        if known is not None and known.config.needs_model:
            able = [name for name, algorithm in ALGORITHMS.items() if not algorithm.config.needs_model]
            raise ValueError(
                f"{known.name} asks a served model, and recorded episodes come without one; choose {', '.join(able)}, "
                "or train with `braid rl`"
            )
        return value
