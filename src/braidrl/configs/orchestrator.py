"""The orchestrator process: environments, algorithms, curricula and the gateway."""

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
    """One task sampler and any number of admission gates of a training source."""

    sampler: InstalledSamplerConfig = Field(default_factory=StandardSamplerConfig)
    """Chooses tasks."""
    gates: dict[str, InstalledGateConfig] = Field(default_factory=dict)
    """By name; a group trains only if each of them admits it. `NAME = "None"` switches an inherited one off."""

    @field_validator("gates", mode="before", json_schema_input_type=dict[str, InstalledGateConfig | None])
    @classmethod
    def _without_those_that_are_off(cls, gates: Any) -> Any:
        if not isinstance(gates, dict):
            return gates
        return {name: gate for name, gate in gates.items() if gate not in (None, OFF)}


class TrainSourceConfig(BaseConfig):
    """One training environment. What it leaves unset it inherits from `[orchestrator.train]`."""

    name: str | None = None
    """Unique name in logs, metrics and records; None: the taskset id."""
    env: EnvBlock
    """The verifiers environment: `env.taskset.id`, `env.agent.harness.id`, ..."""
    weight: float = Field(1.0, gt=0)
    """Share of the sampled groups, relative to the other sources'."""
    group_size: int = Field(8, ge=1)
    """Episodes of one task; most algorithms compare them."""
    algo: InstalledAlgorithmConfig = GRPOConfig()
    """The algorithm of this environment."""
    sampling: TrainSamplingConfig = Field(default_factory=TrainSamplingConfig)
    """How its rollouts are sampled."""
    curriculum: CurriculumConfig = Field(default_factory=CurriculumConfig)
    """Which of its tasks come next."""
    timeout: float = Field(600.0, gt=0)
    """Deadline of one episode, generation and scoring together, in seconds."""
    workers: int = Field(0, ge=0)
    """Processes that play its episodes, each with its own copy of the environment, for tools or rewards that keep a
    processor busy; 0: the orchestrator's own process does."""


INHERITED = ("algo", "sampling", "group_size", "curriculum", "timeout", "workers")
"""Keys of `[orchestrator.train]` that each source inherits."""


class TrainConfig(BaseConfig):
    """Training environments and their defaults."""

    algo: InstalledAlgorithmConfig = GRPOConfig()
    """Default algorithm."""
    sampling: TrainSamplingConfig = Field(default_factory=TrainSamplingConfig)
    """Default sampling."""
    group_size: int = Field(8, ge=1)
    """Default number of episodes of one task."""
    curriculum: CurriculumConfig = Field(default_factory=CurriculumConfig)
    """Default curriculum."""
    timeout: float = Field(600.0, gt=0)
    """Default deadline of one episode, in seconds."""
    workers: int = Field(0, ge=0)
    """Default number of processes that play a source's episodes."""
    capture_head: int | None = Field(None, ge=1)
    """How many of the policy's most likely tokens to capture at each one that it samples for the rl loss; None: none.
    `braid rl` sets it to what `[trainer.loss]` needs (`score_centering_topk`)."""
    source: list[TrainSourceConfig] = Field(default_factory=list)
    """The environments, one `[[orchestrator.train.source]]` each."""

    @model_validator(mode="before")
    @classmethod
    def _sources_inherit(cls, data: Any) -> Any:
        return inherit_sources(data, INHERITED)

    @model_serializer(mode="wrap")
    def _dump_what_loads_back(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return dump_sources(handler(self), INHERITED)


class GatewayConfig(BaseConfig):
    """The only address that environments see."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(0, ge=0, le=65535)
    """Port; 0 takes a free one."""
    request_timeout: float = Field(600.0, gt=0)
    """Deadline of one model call, waiting for a replica included, in seconds."""
    update_timeout: float = Field(600.0, gt=0)
    """Deadline of one weight update on one replica, in seconds."""
    max_inflight_per_replica: int | None = Field(None, ge=1)
    """Most calls that one replica works on at once; the others wait in the gateway, in the order in which they came.
    None: as many as come."""
    health_period: float = Field(5.0, gt=0)
    """Pause between two looks at a replica's `/health`, in seconds."""
    health_timeout: float = Field(30.0, gt=0)
    """How long a replica may take to answer `/health` before it counts as hung, in seconds."""


class ClientConfig(BaseConfig):
    """Where the inference replicas listen. `braid rl` fills it in."""

    base_url: list[str] = Field(default=["http://127.0.0.1:8000/v1"], min_length=1)
    """One address a replica, each ending in `/v1`."""
    address_file: Path | None = None
    """File with an address a line, in the order of `base_url`, that is read again while a replica is away, for it may
    come back elsewhere; None: they stay where they are. `braid rl` fills it in where they may move."""
    api_key_var: str | None = None
    """Environment variable that holds the replicas' API key; None: no key."""
    startup_timeout: float = Field(600.0, gt=0)
    """Longest wait for the replicas to answer, in seconds."""

    @field_validator("base_url")
    @classmethod
    def _have_schemes(cls, urls: list[str]) -> list[str]:
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} is no address: it must start with http:// or https://")
        return urls


class OrchestratorConfig(BatchesConfig):
    """`braid orchestrator`: episodes in, batches of training samples out."""

    model: ModelConfig
    """The policy; its tokenizer renders every message."""
    adapter: bool = False
    """Whether the policy is an adapter on the model, so that the trainer publishes v0 as well; `braid rl` says so where
    there is `[trainer.lora]`."""
    output_dir: Path = Path("outputs/run")
    """Run folder, shared by the three processes."""
    max_steps: int = Field(100, ge=1)
    """Batches to ship."""
    seq_len: int = Field(2048, ge=2)
    """Context limit in tokens; a longer sample is dropped and counted."""
    seed: int = Field(0, ge=0)
    """Seeds task order and sampling; every rollout gets a seed of its own from it."""
    renderer: RendererConfig = Field(default_factory=RendererConfig)
    """How messages become tokens."""
    client: ClientConfig = Field(default_factory=ClientConfig)
    """Where inference listens."""
    gateway: GatewayConfig = Field(default_factory=GatewayConfig)
    """What environments call."""
    train: TrainConfig = Field(default_factory=TrainConfig)
    """Training environments."""
    eval: EvalConfig = Field(default_factory=EvalConfig)
    """Evaluation environments."""
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    """When to save."""
    policy_timeout: float = Field(3600.0, gt=0)
    """Longest wait for the next policy version, in seconds."""

    @model_validator(mode="before")
    @classmethod
    def _older_spelling(cls, data: Any) -> Any:
        return legacy.translate(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _rl_tokens_weigh_alike(self) -> Self:
        kinds: dict[str, int] = {}
        for index, source in enumerate(self.train.source):
            if (aggregation := source.algo.rl_aggregation) is not None:
                kinds.setdefault(aggregation, index)
        if len(kinds) > 1:
            token, prompt = kinds["token"], kinds["prompt"]
            raise ValueError(
                f'train.source[{token}].algo aggregates the rl loss by "token", train.source[{prompt}].algo by '
                '"prompt", but the rl loss has one normaliser: give every source with an rl loss the same '
                "loss_aggregation"
            )
        return self

    @model_validator(mode="after")
    def _batch_holds_a_group(self) -> Self:
        for index, source in enumerate(self.train.source):
            if self.batch_size is not None and source.group_size > self.batch_size:
                raise ValueError(
                    f"train.source[{index}].group_size ({source.group_size}) is larger than batch_size "
                    f"({self.batch_size}); raise batch_size or lower group_size"
                )
        return self
