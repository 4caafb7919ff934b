"""Scoring recorded episodes again."""

from pathlib import Path
from typing import Any

from pydantic import field_validator

from braidrl.configs.algorithm import BaseAlgorithmConfig, GRPOConfig
from braidrl.configs.base import BaseConfig
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
    output: Path | None = None
    """New JSONL file for the signals of every token, one line a trainable branch."""

    @field_validator("algo", "against", mode="before")
    @classmethod
    def _needs_episodes_alone(cls, value: Any) -> Any:
        known = ALGORITHMS.get(value.get("type", "grpo")) if isinstance(value, dict) else None
        if known is not None and (lacking := _lacking(known.config)):
            able = [name for name, algorithm in ALGORITHMS.items() if not _lacking(algorithm.config)]
            raise ValueError(f"{known.name} {lacking}; choose {', '.join(able)}, or train with `braid rl`")
        return value


def _lacking(config: type[BaseAlgorithmConfig]) -> str | None:
    """What an algorithm needs that a record does not hold."""
    if config.needs_model:
        return "asks a served model, and recorded episodes come without one"
    if config.barrier == "batch":
        return "compares what trained in one step, which is not what a record of ended groups tells"
    return None
