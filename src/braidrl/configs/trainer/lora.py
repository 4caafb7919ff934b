"""Training of a LoRA adapter instead of the whole model."""

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from braidrl.configs.core.base import BaseConfig


class LoRAConfig(BaseConfig):
    """LoRA: freeze the model and train a low-rank adapter of its linear layers, W + alpha / rank * B A."""

    rank: int = Field(16, ge=1, le=512)
    """Rank of the adapter. With `path`, it must equal the rank of that adapter."""
    alpha: float | None = Field(None, gt=0)
    """Numerator of the scale alpha / rank. None: twice the rank, or the value of the adapter in `path`."""
    target_modules: list[str] | None = Field(None, min_length=1)
    """Names of the linear layers to adapt, such as `q_proj` or `layers.0.mlp.up_proj`. None: all except the output
    layer, or those of the adapter in `path`."""
    path: Path | None = None
    """Folder of a peft adapter to start from (`weights/step_N` of an earlier run). None: a new adapter, which
    initially leaves the model unchanged."""
    dropout: float = 0.0
    """Must be 0, because trainer and inference engine must compute the same log-probs."""

    @field_validator("dropout")
    @classmethod
    def _check_dropout(cls, dropout: float) -> float:
        if dropout:
            raise ValueError(
                f"dropout is {dropout}, but log-probs of a forward with dropout differ from those of the inference "
                "engine; remove it, and use weight_decay or a lower rank to reduce overfitting"
            )
        return dropout

    @model_validator(mode="after")
    def _check_initial_adapter(self) -> Self:
        given = [name for name in ("alpha", "target_modules") if getattr(self, name) is not None]
        if self.path is not None and given:
            raise ValueError(
                f"{' and '.join(given)} cannot be set together with path, since the adapter in {self.path} defines "
                "them; remove them"
            )
        return self
