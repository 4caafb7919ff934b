"""The trainer process."""

from pathlib import Path

from pydantic import Field

from braidrl.configs.base import BaseConfig
from braidrl.configs.loss import LossConfig
from braidrl.configs.model import ModelConfig
from braidrl.configs.optim import OptimConfig, SchedulerConfig


class CheckpointConfig(BaseConfig):
    """When the whole state of the run is saved. The last step is always saved."""

    interval: int | None = Field(None, ge=1)
    """Save every n-th step; None: only the last."""
    keep_last: int | None = Field(None, ge=1)
    """Keep this many complete checkpoints; None keeps all."""


class TrainerConfig(BaseConfig):
    """`braid trainer`: one optimizer step a batch, algorithm-blind."""

    model: ModelConfig
    """The policy to train."""
    output_dir: Path = Path("outputs/run")
    """Run folder, shared by the three processes."""
    max_steps: int = Field(100, ge=1)
    """Optimizer steps."""
    seq_len: int = Field(2048, ge=2)
    """Context limit in tokens."""
    seed: int = Field(0, ge=0)
    """Seeds everything that the trainer draws."""
    micro_batch_tokens: int | None = Field(None, ge=2)
    """Tokens of one packed row, which is one forward and backward; None: `seq_len`. Gradients do not depend on it."""
    loss: LossConfig = Field(default_factory=LossConfig)
    """The rl loss."""
    optim: OptimConfig = Field(default_factory=OptimConfig)
    """Optimizer."""
    scheduler: SchedulerConfig = Field(default_factory=SchedulerConfig)
    """Learning-rate schedule."""
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    """When to save."""
    activation_checkpointing: bool = False
    """Recompute layer activations in the backward pass: less memory, about a third more time."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; None: what torch chooses (standalone) or a fair share of the cores (`braid rl`)."""
    batch_timeout: float = Field(3600.0, gt=0)
    """Longest wait for the next batch, in seconds."""
