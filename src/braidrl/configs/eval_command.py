"""Configuration of `braid eval`, which evaluates a model outside a run."""

from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from braidrl.configs.core.base import BaseConfig
from braidrl.configs.eval import EvalGroup
from braidrl.configs.inference import InferenceConfig
from braidrl.configs.model import ModelConfig, RendererConfig, one_or_several
from braidrl.configs.orchestrator import GatewayConfig

SHARED = ("model", "output_dir", "seq_len", "seed")
"""Root keys that the inference server inherits."""

SHARED_COPIES = frozenset(f"inference.{key}" for key in SHARED)
"""Copies of the shared keys in the inference server's block, which `--help` omits."""


class EndpointConfig(BaseConfig):
    """An external server: vLLM, `braid inference`, or any other with the OpenAI chat completions route."""

    base_url: list[str] = Field(default_factory=list)
    """Address of the server, or of each replica, ending in `/v1`. Empty: the embedded engine serves the model."""
    model: str | None = None
    """Name of the model on the server. None: `model.path`."""
    api_key_var: str | None = None
    """Environment variable that contains the API key of the server. None: no key."""
    startup_timeout: float = Field(600.0, gt=0)
    """Maximum wait for the server at startup, in seconds."""

    _one_or_several = field_validator("base_url", mode="before", json_schema_input_type=str | list[str])(
        one_or_several
    )


class EvalCommandConfig(EvalGroup):
    """`braid eval`: run evaluation sources on a model or an endpoint, and report reward and pass@k."""

    model: ModelConfig
    """Model to evaluate: a Hugging Face folder, a run folder, or a checkpoint of a run. For a model on an external
    server, its tokenizer."""
    step: int | None = Field(None, ge=0)
    """Step to evaluate, if `model.path` is a run folder. None: the newest."""
    client: EndpointConfig = Field(default_factory=EndpointConfig)
    """External server. By default, the embedded engine serves the model."""
    output_dir: Path = Path("outputs/eval")
    """Folder for episodes, metrics and logs, with the layout of a run folder."""
    seq_len: int = Field(2048, ge=2)
    """Maximum context length in tokens."""
    seed: int = Field(0, ge=0)
    """Seed of sampling. The seed of each rollout is derived from it."""
    renderer: RendererConfig = Field(default_factory=RendererConfig)
    """Renderer, which converts messages to tokens."""
    gateway: GatewayConfig = Field(default_factory=GatewayConfig)
    """HTTP server through which environments call the model."""
    inference: InferenceConfig
    """Settings of the embedded engine, if it serves the model."""
    stop_timeout: float = Field(15.0, gt=0)
    """Seconds that the inference server has to exit after SIGTERM before it is killed."""

    @model_validator(mode="before")
    @classmethod
    def _share_root_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        inference = dict(data.get("inference") or {})
        return {**data, "inference": {key: data[key] for key in SHARED if key in data} | inference}

    @model_validator(mode="after")
    def _check_shared_keys(self) -> Self:
        for key in SHARED:
            if getattr(self.inference, key) != getattr(self, key) and key in self.inference.model_fields_set:
                raise ValueError(f"inference.{key} differs from {key} at the root; set it only at the root")
        self.inference = self.inference.model_copy(update={key: getattr(self, key) for key in SHARED})
        return self
