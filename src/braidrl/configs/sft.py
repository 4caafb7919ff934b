"""Supervised fine-tuning on demonstrations: `braid sft @ sft.toml`."""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from braidrl.configs.core.base import BaseConfig
from braidrl.configs.model import ModelConfig, RendererConfig
from braidrl.configs.trainer.lora import LoRAConfig
from braidrl.configs.trainer.optim import OptimConfig, SchedulerConfig
from braidrl.configs.trainer.parallel import ParallelConfig


class SFTDataConfig(BaseConfig):
    """Where demonstrations come from: a verifiers taskset, or a JSONL file of conversations."""

    taskset: dict[str, Any] | None = None
    """A verifiers taskset block (`taskset.id = "reverse-text"`); each task's `demo_key` answers its prompt."""
    demo_key: str = "demonstration"
    """Field of the task data that holds the demonstration."""
    path: Path | None = None
    """JSONL file; each line is `{"messages": [{"role": ..., "content": ...}, ...]}`."""
    all_roles: bool = False
    """Whether the content of every message is learnt, as a base model would; else what the assistant says alone."""
    weight: float = Field(1.0, gt=0)
    """Share of the conversations, relative to the other sources'."""

    @property
    def name(self) -> str:
        """What metrics and records call it: the taskset's id, or the file's name without suffix."""
        return str((self.taskset or {}).get("id")) if self.path is None else self.path.stem

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.taskset is None) == (self.path is None):
            raise ValueError(
                'set exactly one of data.taskset (for example data.taskset.id = "reverse-text") and data.path'
            )
        return self


def _alone(data: Any) -> Any:
    return [data] if isinstance(data, dict | SFTDataConfig) else data


class SFTConfig(BaseConfig):
    """`braid sft`: cross-entropy on the assistant's tokens, through the same trainer step as reinforcement learning."""

    model: ModelConfig
    """The model to train."""
    lora: LoRAConfig | None = None
    """Train an adapter of it alone; None: all of it."""
    output_dir: Path = Path("outputs/sft")
    """Run folder; the trained model lies in `weights/step_N`."""
    data: Annotated[
        list[SFTDataConfig],
        BeforeValidator(_alone, json_schema_input_type=SFTDataConfig | list[SFTDataConfig]),
        Field(min_length=1),
    ]
    """Demonstrations: one source (`[data]`), or several that are mixed by their weights (`[[data]]`)."""
    renderer: RendererConfig = Field(default_factory=RendererConfig)
    """How messages become tokens."""
    max_steps: int = Field(100, ge=1)
    """Optimizer steps."""
    batch_size: int = Field(32, ge=1)
    """Conversations of one optimizer step."""
    seq_len: int = Field(2048, ge=2)
    """Context limit in tokens; a longer conversation is dropped and counted."""
    micro_batch_tokens: int | None = Field(None, ge=2)
    """Tokens of one packed row; None: `seq_len`."""
    seed: int = Field(0, ge=0)
    """Seeds the order of the data."""
    optim: OptimConfig = Field(default_factory=OptimConfig)
    """Optimizer."""
    scheduler: SchedulerConfig = Field(default_factory=SchedulerConfig)
    """Learning-rate schedule."""
    parallel: ParallelConfig = Field(default_factory=ParallelConfig)
    """Processes that train together, and how they share the weights."""
    activation_checkpointing: bool = False
    """Recompute layer activations in the backward pass."""
    activation_offload: bool = False
    """Recompute as `activation_checkpointing` does, and keep what a layer is recomputed from in CPU memory meanwhile:
    for long rows on a GPU."""
    compile: bool = False
    """Compile each layer (`torch.compile`) once for rows of any length: faster steps, after a minute at the start."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; None: what torch chooses."""
