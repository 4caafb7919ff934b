"""Configuration of the inference process."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from braidrl.configs.core.base import BaseConfig
from braidrl.configs.model import ModelConfig

HEAD_MARGIN = 2
"""Number of candidates to request beyond a head: one slot may be taken by a sampled token that ranks below it, and one
more shows whether the last token of the head is tied with the next."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts that are not reachable from other machines."""

WORKER_EXTENSION = "braid_vllm.PolicyWorker"
"""Worker extension with which `braid inference` starts vLLM (`inference/vllm_worker`)."""

BASE_SUFFIX = "@base"
"""Suffix of the base model's served name. The name without the suffix is that of the adapter."""


class VLLMConfig(BaseConfig):
    """Start of stock vLLM. Ignored by other engines."""

    python: str | None = None
    """Python interpreter of the environment in which vLLM is installed. None: the current one."""
    tensor_parallel_size: int = Field(1, ge=1)
    """Number of devices over which each layer is sharded."""
    pipeline_parallel_size: int = Field(1, ge=1)
    """Number of pipeline stages."""
    data_parallel_size: int = Field(1, ge=1)
    """Number of copies of the model behind one address."""
    lora_rank: int | None = Field(None, ge=1, le=512)
    """Rank of the LoRA adapter, if the policy is one. None: the policy is a whole model. `braid rl` sets it from
    `[trainer.lora]`."""
    weight_transfer: bool = False
    """Receive weights from the trainer's memory over NCCL. `braid rl` sets it from `trainer.weights.transfer`."""
    args: list[str] = Field(default_factory=list)
    """Additional flags of the vLLM server (`["--enforce-eager"]`). They override Braid's flags."""
    env: dict[str, str] = Field(default_factory=dict)
    """Additional environment variables."""

    @property
    def devices(self) -> int:
        """Number of GPUs per server."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


class InferenceConfig(BaseConfig):
    """`braid inference`: serve the policy and apply weight updates."""

    engine: Literal["torch", "vllm"] = "torch"
    """Inference engine. `torch`: the embedded engine. `vllm`: stock vLLM, which must be installed."""
    vllm: VLLMConfig = Field(default_factory=VLLMConfig)
    """Settings of vLLM."""
    model: ModelConfig
    """Policy to serve."""
    output_dir: Path = Path("outputs/run")
    """Run folder, for logs."""
    seq_len: int = Field(2048, ge=2)
    """Maximum context length in tokens, prompt plus completion (`max_model_len`)."""
    seed: int = Field(0, ge=0)
    """Seed of requests without a `seed`."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on, 0 for a free port. Several servers use consecutive ports starting at this one. `braid rl` uses
    free ports unless the key is set."""
    replicas: int = Field(1, ge=0)
    """Number of servers that `braid rl` starts. 0: use the running servers at `orchestrator.client.base_url`."""
    max_restarts: int = Field(3, ge=0)
    """Maximum number of restarts of a failed server within ten minutes. 0: a failed server ends the run."""
    api_key_var: str | None = None
    """Environment variable that contains the API key required from clients. None: no key."""
    share_device: bool = False
    """Release the device to the trainer between batches. vLLM is started with sleep mode. `braid rl` copies this key
    from the root."""
    max_batch_size: int = Field(64, ge=1)
    """Maximum number of sequences decoded together (slots of the KV cache)."""
    prefill_tokens: int = Field(4096, ge=1)
    """Maximum number of prompt tokens prefilled between two decode steps."""
    max_logprobs: int = Field(200, ge=1)
    """Maximum number of candidates per token that a request may ask for. `braid rl` raises it if `[trainer.loss]` needs
    more."""
    threads: int | None = Field(None, ge=1)
    """Number of CPU threads. None: torch's default (standalone), or an equal share of the cores (`braid rl`)."""

    @property
    def devices(self) -> int:
        """Number of GPUs per server, on a machine with GPUs."""
        return self.vllm.devices if self.engine == "vllm" else 1

    @model_validator(mode="after")
    def _check_api_key(self) -> Self:
        if self.host not in LOOPBACK and self.api_key_var is None:
            raise ValueError(
                f"host is {self.host!r}, which is reachable from other machines, but api_key_var is not set; set it to "
                'the name of an environment variable that contains a key, or set host = "127.0.0.1"'
            )
        return self
