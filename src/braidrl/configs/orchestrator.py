"""Configuration of the orchestrator process: environments, algorithms, curricula and the gateway."""

from pathlib import Path
from typing import Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from braidrl.configs.algorithm import GRPOConfig
from braidrl.configs.batches import BatchesConfig
from braidrl.configs.compat import legacy
from braidrl.configs.core.base import BaseConfig, EnvBlock
from braidrl.configs.core.inherit import OFF, dump_sources, inherit_sources
from braidrl.configs.curriculum.samplers import StandardSamplerConfig
from braidrl.configs.eval import EvalConfig
from braidrl.configs.model import ModelConfig, RendererConfig, TrainSamplingConfig
from braidrl.configs.plugins import InstalledAlgorithmConfig, InstalledGateConfig, InstalledSamplerConfig
from braidrl.configs.trainer.config import CheckpointConfig


class CurriculumConfig(BaseConfig):
    """Curriculum of a training source: one task sampler and any number of admission gates."""

    sampler: InstalledSamplerConfig = Field(default_factory=StandardSamplerConfig)
    """Sampler that selects the next task."""
    gates: dict[str, InstalledGateConfig] = Field(default_factory=dict)
    """Admission gates by name. A group trains only if all gates admit it. `NAME = "None"` removes an inherited gate."""

    @field_validator("gates", mode="before", json_schema_input_type=dict[str, InstalledGateConfig | None])
    @classmethod
    def _remove_disabled(cls, gates: Any) -> Any:
        if not isinstance(gates, dict):
            return gates
        return {name: gate for name, gate in gates.items() if gate not in (None, OFF)}


class TrainSourceConfig(BaseConfig):
    """A training environment. Keys that it does not set are inherited from `[orchestrator.train]`."""

    name: str | None = None
    """Unique name in logs, metrics and records. None: the taskset id."""
    env: EnvBlock
    """Verifiers environment: `env.taskset.id`, `env.agent.harness.id` and other keys of its config class."""
    weight: float = Field(1.0, gt=0)
    """Share of the sampled groups, relative to the weights of the other sources."""
    group_size: int = Field(8, ge=1)
    """Number of episodes per task. Most algorithms compare them."""
    algo: InstalledAlgorithmConfig = GRPOConfig()
    """Algorithm of this source."""
    sampling: TrainSamplingConfig = Field(default_factory=TrainSamplingConfig)
    """Sampling of rollouts."""
    curriculum: CurriculumConfig = Field(default_factory=CurriculumConfig)
    """Selection of tasks and of groups that train."""
    timeout: float = Field(600.0, gt=0)
    """Deadline of an episode in seconds, including generation and scoring."""
    workers: int = Field(0, ge=0)
    """Number of worker processes that run the episodes, each with its own copy of the environment, for CPU-bound tools
    or rewards. 0: run them in the orchestrator process."""


INHERITED = ("algo", "sampling", "group_size", "curriculum", "timeout", "workers")
"""Keys of `[orchestrator.train]` that sources inherit."""


class TrainConfig(BaseConfig):
    """Training environments and their defaults."""

    algo: InstalledAlgorithmConfig = GRPOConfig()
    """Default algorithm."""
    sampling: TrainSamplingConfig = Field(default_factory=TrainSamplingConfig)
    """Default sampling."""
    group_size: int = Field(8, ge=1)
    """Default number of episodes per task."""
    curriculum: CurriculumConfig = Field(default_factory=CurriculumConfig)
    """Default curriculum."""
    timeout: float = Field(600.0, gt=0)
    """Default deadline of an episode, in seconds."""
    workers: int = Field(0, ge=0)
    """Default number of worker processes per source."""
    capture_head: int | None = Field(None, ge=1)
    """Number of most likely tokens of the sampler to capture for each sampled token of the rl loss. None: capture
    nothing. `braid rl` sets it to `score_centering_topk` of `[trainer.loss]`."""
    source: list[TrainSourceConfig] = Field(default_factory=list)
    """Training environments, one `[[orchestrator.train.source]]` each."""

    @model_validator(mode="before")
    @classmethod
    def _sources_inherit(cls, data: Any) -> Any:
        return inherit_sources(data, INHERITED)

    @model_serializer(mode="wrap")
    def _serialize_sources(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return dump_sources(handler(self), INHERITED)


class GatewayConfig(BaseConfig):
    """HTTP server in the orchestrator, through which environments call the model."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(0, ge=0, le=65535)
    """Port to listen on, 0 for a free port."""
    request_timeout: float = Field(600.0, gt=0)
    """Deadline of a model call in seconds, including the wait for a replica."""
    update_timeout: float = Field(600.0, gt=0)
    """Deadline of a weight update on a replica, in seconds."""
    max_inflight_per_replica: int | None = Field(None, ge=1)
    """Maximum number of concurrent calls per replica. Further calls wait in the gateway, first in, first out. None: no
    limit."""
    health_period: float = Field(5.0, gt=0)
    """Interval between requests to `/health` of a replica, in seconds."""
    health_timeout: float = Field(30.0, gt=0)
    """Seconds without an answer to `/health` after which a replica is considered hung."""


class ClientConfig(BaseConfig):
    """Addresses of the inference replicas. `braid rl` sets them for the servers that it starts."""

    base_url: list[str] = Field(default=["http://127.0.0.1:8000/v1"], min_length=1)
    """Address of each replica, ending in `/v1`."""
    address_file: Path | None = None
    """File with one address per line, in the order of `base_url`, that is reread while a replica is unreachable. None:
    addresses do not change. `braid rl` sets it if a restarted replica may get another address."""
    api_key_var: str | None = None
    """Environment variable that contains the API key of the replicas. None: no key."""
    startup_timeout: float = Field(600.0, gt=0)
    """Maximum wait for the replicas at startup, in seconds."""

    @field_validator("base_url")
    @classmethod
    def _check_schemes(cls, urls: list[str]) -> list[str]:
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} is not an address; it must start with http:// or https://")
        return urls


class OrchestratorConfig(BatchesConfig):
    """`braid orchestrator`: run episodes, assign credit and publish training batches."""

    model: ModelConfig
    """Policy whose tokenizer renders messages."""
    adapter: bool = False
    """Treat the policy as an adapter on the model, of which the trainer also publishes v0. `braid rl` sets it with
    `[trainer.lora]`."""
    output_dir: Path = Path("outputs/run")
    """Run folder, shared by the three processes."""
    max_steps: int = Field(100, ge=1)
    """Number of batches to publish."""
    seq_len: int = Field(2048, ge=2)
    """Maximum context length in tokens. Longer samples are dropped and counted."""
    seed: int = Field(0, ge=0)
    """Seed of task order and sampling. The seed of each rollout is derived from it."""
    renderer: RendererConfig = Field(default_factory=RendererConfig)
    """Renderer, which converts messages to tokens."""
    client: ClientConfig = Field(default_factory=ClientConfig)
    """Addresses of the inference replicas."""
    gateway: GatewayConfig = Field(default_factory=GatewayConfig)
    """HTTP server through which environments call the model."""
    train: TrainConfig = Field(default_factory=TrainConfig)
    """Training environments, and the defaults that they inherit."""
    eval: EvalConfig = Field(default_factory=EvalConfig)
    """Evaluation environments, and the defaults that they inherit."""
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    """When to save checkpoints, and which to keep."""
    policy_timeout: float = Field(3600.0, gt=0)
    """Maximum wait for the next policy version, in seconds."""

    @model_validator(mode="before")
    @classmethod
    def _translate_older_spelling(cls, data: Any) -> Any:
        return legacy.translate(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _check_aggregation(self) -> Self:
        first_with: dict[str, int] = {}
        for index, source in enumerate(self.train.source):
            if (aggregation := source.algo.rl_aggregation) is not None:
                first_with.setdefault(aggregation, index)
        if len(first_with) > 1:
            token, prompt = first_with["token"], first_with["prompt"]
            raise ValueError(
                f'train.source[{token}].algo aggregates the rl loss by "token", train.source[{prompt}].algo by '
                '"prompt", but the rl loss has a single denominator; give every source with an rl loss the same '
                "loss_aggregation"
            )
        return self

    @model_validator(mode="after")
    def _check_group_size(self) -> Self:
        for index, source in enumerate(self.train.source):
            if self.batch_size is not None and source.group_size > self.batch_size:
                raise ValueError(
                    f"train.source[{index}].group_size ({source.group_size}) is larger than batch_size "
                    f"({self.batch_size}); raise batch_size or lower group_size"
                )
        return self
