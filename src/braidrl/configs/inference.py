"""The inference process."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from braidrl.configs.core.base import BaseConfig
from braidrl.configs.model import ModelConfig

HEAD_MARGIN = 2
"""Candidates beyond a head that it takes to recover it: a low-ranked sampled token may take one place, and one shows
whether the last of the head is tied with the next."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts that no other machine reaches."""

WORKER_EXTENSION = "braid_vllm.PolicyWorker"
"""What `braid inference` adds to vLLM's workers (`inference/vllm_worker`)."""

BASE_SUFFIX = "@base"
"""After the name of a model that vLLM serves without the adapter that bears the name itself."""


class VLLMConfig(BaseConfig):
    """How stock vLLM is started; nothing of it is read with another engine."""

    python: str | None = None
    """Interpreter of the environment that vLLM is installed in; None: this one."""
    tensor_parallel_size: int = Field(1, ge=1)
    """Devices that share each layer."""
    pipeline_parallel_size: int = Field(1, ge=1)
    """Stages that layers are divided into."""
    data_parallel_size: int = Field(1, ge=1)
    """Copies of the model behind one address."""
    lora_rank: int | None = Field(None, ge=1, le=512)
    """Rank of the adapter that the policy is; None: it is a whole model. `braid rl` takes it from `[trainer.lora]`."""
    weight_transfer: bool = False
    """Whether its workers receive weights from the trainer's memory; `braid rl` takes it from
    `trainer.weights.transfer`."""
    args: list[str] = Field(default_factory=list)
    """Further flags of vLLM's server, as on its command line (`["--enforce-eager"]`); they win over Braid's."""
    env: dict[str, str] = Field(default_factory=dict)
    """Further environment variables."""

    @property
    def devices(self) -> int:
        """GPUs of one server."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


class InferenceConfig(BaseConfig):
    """`braid inference`: serves the policy and takes its weight updates."""

    engine: Literal["torch", "vllm"] = "torch"
    """`torch`: the embedded engine. `vllm`: stock vLLM, which must be installed."""
    vllm: VLLMConfig = Field(default_factory=VLLMConfig)
    """How vLLM is started."""
    model: ModelConfig
    """The policy to serve."""
    output_dir: Path = Path("outputs/run")
    """Run folder, for logs."""
    seq_len: int = Field(2048, ge=2)
    """Context limit in tokens, prompt and completion together (`max_model_len`)."""
    seed: int = Field(0, ge=0)
    """Seeds requests that carry no seed of their own."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one (`braid rl` always does, unless a port is set). Of several servers the
    first has this port and each further one the next."""
    replicas: int = Field(1, ge=0)
    """Servers that `braid rl` starts; 0: none, for those at `orchestrator.client.base_url` are there already."""
    max_restarts: int = Field(3, ge=0)
    """Times in ten minutes that `braid rl` starts a server anew that was up and ended; 0: its end is the run's."""
    api_key_var: str | None = None
    """Environment variable that holds the API key which requests must carry; None: no key."""
    share_device: bool = False
    """Whether the trainer has the device in between: vLLM is started so that it can sleep. `braid rl` takes the key at
    the root."""
    max_batch_size: int = Field(64, ge=1)
    """Sequences that decode together (slots of the KV cache)."""
    prefill_tokens: int = Field(4096, ge=1)
    """Most prompt tokens that are prefilled between two decode steps."""
    max_logprobs: int = Field(200, ge=1)
    """Most candidates a request may ask for per token; `braid rl` raises it to what `[trainer.loss]` needs."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; None: what torch chooses (standalone) or a fair share of the cores (`braid rl`)."""

    @property
    def devices(self) -> int:
        """GPUs of one server, where there are GPUs."""
        return self.vllm.devices if self.engine == "vllm" else 1

    @model_validator(mode="after")
    def _strangers_need_a_key(self) -> Self:
        if self.host not in LOOPBACK and self.api_key_var is None:
            raise ValueError(
                f"host is {self.host!r}, which other machines reach, and api_key_var is not set; let it name an "
                "environment variable that holds a key, or listen on 127.0.0.1"
            )
        return self
