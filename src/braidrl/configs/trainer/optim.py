"""Optimizer and learning-rate schedule, the same for `braid rl` and `braid sft`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from braidrl.configs.core.base import BaseConfig


class OptimConfig(BaseConfig):
    """AdamW with gradient clipping by global norm."""

    lr: float = Field(1e-5, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the first and second moment."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled decay of matrices; vectors (norms, biases) are not decayed."""
    max_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this global L2 norm."""
    offload: bool = False
    """Keep AdamW's moments in CPU memory and take its step there: 8 bytes a parameter less on the GPU, for transfers of
    12 bytes a parameter and a slower step. On a CPU nothing changes."""


class SchedulerConfig(BaseConfig):
    """Learning rate over optimizer steps: linear warm-up, then constant, linear or cosine decay."""

    type: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate moves after the warm-up."""
    warmup_steps: int = Field(0, ge=0)
    """Steps from 0 to the peak."""
    decay_steps: int | None = Field(None, ge=1)
    """Steps from the peak to `min_lr_ratio`, after the warm-up; None: until `max_steps`."""
    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    """Final learning rate as a share of the peak."""

    @model_validator(mode="after")
    def _constant_does_not_decay(self) -> Self:
        if self.type == "constant" and self.decay_steps is not None:
            raise ValueError(
                'decay_steps has no effect with type "constant"; set type = "linear" or "cosine", or remove decay_steps'
            )
        return self
