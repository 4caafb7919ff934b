"""Configuration of `braid score`, which runs algorithms on recorded episodes."""

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from braidrl.configs.algorithm import GRPOConfig
from braidrl.configs.core.base import BaseConfig
from braidrl.configs.plugins import ALGORITHMS, InstalledAlgorithmConfig


class ScoreConfig(BaseConfig):
    """`braid score EPISODES`: run an algorithm on recorded episodes, without a model."""

    episodes: Path
    """Run folder, or JSONL file of its `episodes/train`. First argument of the command line."""
    source: str | None = None
    """Name of the only source to score. None: all sources, each with its own instance of the algorithm."""
    algo: InstalledAlgorithmConfig = GRPOConfig()
    """Algorithm to run."""
    against: InstalledAlgorithmConfig | None = None
    """Second algorithm, for comparison. None: no comparison."""
    show: int = Field(10, ge=0)
    """Maximum number of groups to print, evenly spaced over the record. The summary covers all groups."""
    output: Path | None = None
    """JSONL file to write with the streams of every token, one line per trainable branch. Must not exist."""

    @field_validator("algo", "against", mode="before")
    @classmethod
    def _reject_algorithms_with_models(cls, value: Any) -> Any:
        known = ALGORITHMS.get(value.get("type", "grpo")) if isinstance(value, dict) else None
        if known is not None and known.config.needs_model:
            offline = [name for name, algorithm in ALGORITHMS.items() if not algorithm.config.needs_model]
            raise ValueError(
                f"{known.name} calls a served model, which is not available for recorded episodes; choose one of "
                f"{', '.join(offline)}, or train with `braid rl`"
            )
        return value
