"""`braid eval`: evaluation by itself."""

from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from braidrl.configs.core.base import BaseConfig
from braidrl.configs.eval import EvalGroup
from braidrl.configs.inference import InferenceConfig
from braidrl.configs.model import ModelConfig, RendererConfig, one_or_several
from braidrl.configs.orchestrator import GatewayConfig

SHARED = ("model", "output_dir", "seq_len", "seed")
"""Keys at the root that the inference server takes as well."""

SHARED_COPIES = frozenset(f"inference.{key}" for key in SHARED)
"""Its copies of them, which `--help` leaves out."""


class EndpointConfig(BaseConfig):
    """A server that somebody else runs: vLLM, `braid inference`, or any other with OpenAI's chat route."""

    base_url: list[str] = Field(default_factory=list)
    """Address or several replicas, each ending in `/v1`; none: the embedded engine serves the model."""
    model: str | None = None
    """Name of the model there; None: `model.path`."""
    api_key_var: str | None = None
    """Environment variable that holds the server's API key; None: no key."""
    startup_timeout: float = Field(600.0, gt=0)
    """Longest wait for the server to answer, in seconds."""

    _one_or_several = field_validator("base_url", mode="before", json_schema_input_type=str | list[str])(
        one_or_several
    )


class EvalCommandConfig(EvalGroup):
    """`braid eval`: play evaluation sources with a model or an endpoint, and report reward and pass@k."""

    model: ModelConfig
    """What is evaluated: a Hugging Face folder, a run folder, a checkpoint of a run, or a model that an endpoint
    serves (then it says where its tokenizer lies)."""
    step: int | None = Field(None, ge=0)
    """Which step of the run folder in `model.path`; None: its newest."""
    client: EndpointConfig = Field(default_factory=EndpointConfig)
    """A server that is already there."""
    output_dir: Path = Path("outputs/eval")
    """Folder for episodes, metrics and logs, laid out as a run folder."""
    seq_len: int = Field(2048, ge=2)
    """Context limit in tokens."""
    seed: int = Field(0, ge=0)
    """Seeds sampling; every rollout gets a seed of its own from it."""
    renderer: RendererConfig = Field(default_factory=RendererConfig)
    """How messages become tokens."""
    gateway: GatewayConfig = Field(default_factory=GatewayConfig)
    """What environments call."""
    inference: InferenceConfig
    """The embedded engine, where it serves the model."""
    stop_timeout: float = Field(15.0, gt=0)
    """Seconds that the inference server gets to end by itself."""

    @model_validator(mode="before")
    @classmethod
    def _share_root_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        inference = dict(data.get("inference") or {})
        return {**data, "inference": {key: data[key] for key in SHARED if key in data} | inference}

    @model_validator(mode="after")
    def _shared_keys_agree(self) -> Self:
        for key in SHARED:
            if getattr(self.inference, key) != getattr(self, key) and key in self.inference.model_fields_set:
                raise ValueError(f"inference.{key} differs from {key} at the root; set it at the root alone")
        self.inference = self.inference.model_copy(update={key: getattr(self, key) for key in SHARED})
        return self
