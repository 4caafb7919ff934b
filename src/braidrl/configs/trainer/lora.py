"""Training an adapter instead of the whole model."""

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from braidrl.configs.core.base import BaseConfig


class LoRAConfig(BaseConfig):
    """`[trainer.lora]`: freeze the model and train a low-rank adapter of its linear layers, W + alpha / rank * B A."""

    rank: int = Field(16, ge=1, le=512)
    """Rows of A and columns of B; with `path`, that adapter's."""
    alpha: float | None = Field(None, gt=0)
    """Scale of the adapter, times the rank; None: twice the rank, or that of `path`."""
    target_modules: list[str] | None = Field(None, min_length=1)
    """Names of linear layers, `q_proj` or `layers.0.mlp.up_proj`; None: all but the output layer, or as in `path`."""
    path: Path | None = None
    """Folder of a peft adapter to start from (`weights/step_N` of an earlier run); None: a fresh one, which changes
    nothing until it has learnt."""
    dropout: float = 0.0
    """Only 0: trainer and engine must compute the same log-probs."""

    @field_validator("dropout")
    @classmethod
    def _is_exact(cls, dropout: float) -> float:
        if dropout:
            raise ValueError(
                f"dropout is {dropout}, but log-probs of a forward with dropout are not those that the engine sampled "
                "with; remove it, and use weight_decay or a smaller rank against overfitting"
            )
        return dropout

    @model_validator(mode="after")
    def _starts_from_one_thing(self) -> Self:
        given = [name for name in ("alpha", "target_modules") if getattr(self, name) is not None]
        if self.path is not None and given:
            raise ValueError(
                f"{' and '.join(given)} are those of the adapter in path ({self.path}); remove them"
            )
        return self
