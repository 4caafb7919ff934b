"""Configuration of supervised fine-tuning: `braid sft @ sft.toml`."""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from braidrl.configs.core.base import BaseConfig
from braidrl.configs.model import ModelConfig, RendererConfig
from braidrl.configs.trainer.lora import LoRAConfig
from braidrl.configs.trainer.optim import OptimConfig, SchedulerConfig
from braidrl.configs.trainer.parallel import ParallelConfig


class SFTDataConfig(BaseConfig):
    """A source of demonstrations: a verifiers taskset, or a JSONL file of conversations."""

    taskset: dict[str, Any] | None = None
    """Verifiers taskset (`taskset.id = "reverse-text"`). The target of each task is the answer in its field
    `demo_key`."""
    demo_key: str = "demonstration"
    """Field of the task data that contains the demonstration."""
    path: Path | None = None
    """JSONL file with one `{"messages": [{"role": ..., "content": ...}, ...]}` per line."""
    all_roles: bool = False
    """Train on the content of all messages, as in pre-training. If false, only on assistant messages."""
    weight: float = Field(1.0, gt=0)
    """Share of the conversations, relative to the weights of the other sources."""

    @property
    def name(self) -> str:
        """Name in metrics and records: the taskset id, or the file name without suffix."""
        return str((self.taskset or {}).get("id")) if self.path is None else self.path.stem

    @model_validator(mode="after")
    def _check_origin(self) -> Self:
        if (self.taskset is None) == (self.path is None):
            raise ValueError(
                f"{'neither' if self.path is None else 'both'} of data.taskset and data.path "
                f"{'is' if self.path is None else 'are'} set; "
                'set exactly one of data.taskset (for example data.taskset.id = "reverse-text") and data.path'
            )
        return self


def _as_list(data: Any) -> Any:
    return [data] if isinstance(data, dict | SFTDataConfig) else data


class SFTConfig(BaseConfig):
    """`braid sft`: cross-entropy on assistant tokens, with the same trainer step as reinforcement learning."""

    model: ModelConfig
    """Model to train."""
    lora: LoRAConfig | None = None
    """Train only a LoRA adapter of the model. None: train the whole model."""
    output_dir: Path = Path("outputs/sft")
    """Run folder. The trained model is saved to `weights/step_N`."""
    data: Annotated[
        list[SFTDataConfig],
        BeforeValidator(_as_list, json_schema_input_type=SFTDataConfig | list[SFTDataConfig]),
        Field(min_length=1),
    ]
    """Demonstrations: a single source (`[data]`), or several mixed by weight (`[[data]]`)."""
    renderer: RendererConfig = Field(default_factory=RendererConfig)
    """Renderer, which converts messages to tokens."""
    max_steps: int = Field(100, ge=1)
    """Number of optimizer steps."""
    batch_size: int = Field(32, ge=1)
    """Number of conversations per optimizer step."""
    seq_len: int = Field(2048, ge=2)
    """Maximum context length in tokens. Longer conversations are dropped and counted."""
    micro_batch_tokens: int | None = Field(None, ge=2)
    """Maximum number of tokens in a packed row, which is one forward and backward pass. None: `seq_len`."""
    seed: int = Field(0, ge=0)
    """Seed of the data order."""
    optim: OptimConfig = Field(default_factory=OptimConfig)
    """Optimizer."""
    scheduler: SchedulerConfig = Field(default_factory=SchedulerConfig)
    """Learning-rate schedule."""
    parallel: ParallelConfig = Field(default_factory=ParallelConfig)
    """Number of trainer processes and sharding of the weights."""
    activation_checkpointing: bool = False
    """Recompute layer activations in the backward pass: less memory, about a third more time."""
    activation_offload: bool = False
    """Activation checkpointing with the saved layer inputs in CPU memory until the backward pass, for long rows on a
    GPU."""
    compile: bool = False
    """Compile each layer with `torch.compile`, once for all row lengths. Steps are faster; compilation takes about a
    minute at the start."""
    threads: int | None = Field(None, ge=1)
    """Number of CPU threads. None: torch's default."""
