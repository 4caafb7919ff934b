"""Optimizer and learning-rate schedule, shared by `braid rl` and `braid sft`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from braidrl.configs.core.base import BaseConfig


class OptimConfig(BaseConfig):
    """AdamW with gradient clipping by global norm."""

    lr: float = Field(1e-5, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of the first and second moment."""
    eps: float = Field(1e-8, gt=0)
    """Constant added to the square root of the second moment for numerical stability."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay of matrices. Vectors (norms, biases) are not decayed."""
    max_norm: float = Field(1.0, gt=0)
    """Maximum global L2 norm of the gradients. Larger gradients are scaled down to it."""
    offload: bool = False
    """Keep the moments of AdamW in CPU memory and run the optimizer step there. Saves 8 bytes of GPU memory per
    parameter, but transfers 12 bytes per parameter and makes the step slower. No effect on a CPU."""


class SchedulerConfig(BaseConfig):
    """Learning-rate schedule: linear warm-up, then constant, linear decay or cosine decay."""

    type: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the schedule after the warm-up."""
    warmup_steps: int = Field(0, ge=0)
    """Number of warm-up steps, from 0 to the peak."""
    decay_steps: int | None = Field(None, ge=1)
    """Number of steps from the peak to `min_lr_ratio`, after the warm-up. None: until `max_steps`."""
    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    """Final learning rate as a fraction of the peak."""

    @model_validator(mode="after")
    def _check_decay_steps(self) -> Self:
        if self.type == "constant" and self.decay_steps is not None:
            raise ValueError(
                'decay_steps has no effect with type "constant"; set type = "linear" or "cosine", or remove decay_steps'
            )
        return self
