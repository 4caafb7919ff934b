"""Configuration of a whole run: `braid rl @ run.toml`."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from braidrl.configs.compat import recipe
from braidrl.configs.core.base import BaseConfig
from braidrl.configs.inference import HEAD_MARGIN, InferenceConfig
from braidrl.configs.launchers import RayConfig, SlurmConfig
from braidrl.configs.model import ModelConfig
from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.configs.trackers import TrackerConfig
from braidrl.configs.trainer.config import CheckpointConfig, TrainerConfig

PROCESSES = ("trainer", "orchestrator", "inference")

SHARED = {
    "model": PROCESSES,
    "output_dir": PROCESSES,
    "seq_len": PROCESSES,
    "seed": PROCESSES,
    "max_steps": ("trainer", "orchestrator"),
    "checkpoint": ("trainer", "orchestrator"),
    "share_device": PROCESSES,
}
"""Root keys and the processes that inherit them. A process must not set a different value."""

SHARED_COPIES = frozenset(f"{process}.{key}" for key, processes in SHARED.items() for process in processes)
"""Copies of the shared keys in the processes, which `--help` omits."""


class RLConfig(BaseConfig):
    """`braid rl`: a reinforcement-learning run of three cooperating processes."""

    model: ModelConfig
    """Policy to train."""
    output_dir: Path = Path("outputs/run")
    """Run folder for the resolved config, logs, metrics, episodes, weights and checkpoints."""
    max_steps: int = Field(100, ge=1)
    """Number of training steps, one per batch."""
    seq_len: int = Field(2048, ge=2)
    """Maximum context length in tokens."""
    seed: int = Field(0, ge=0)
    """Seed of the whole run."""
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    """When to save checkpoints, and which to keep."""
    share_device: bool = False
    """Run trainer and inference alternately on a single device (`docs/one_gpu.md`). Implies strictly on-policy
    training."""
    trainer: TrainerConfig
    """Settings of the trainer process."""
    orchestrator: OrchestratorConfig
    """Settings of the orchestrator process."""
    inference: InferenceConfig
    """Settings of the inference process."""
    launcher: Literal["local", "ray", "slurm"] = "local"
    """Launcher of the processes: on this machine, on a Ray cluster, or in a SLURM job."""
    ray: RayConfig = Field(default_factory=RayConfig)
    """Settings of the Ray launcher."""
    slurm: SlurmConfig = Field(default_factory=SlurmConfig)
    """Settings of the SLURM launcher."""
    stop_timeout: float = Field(15.0, gt=0)
    """Seconds that a process has to exit after SIGTERM before it is killed."""
    tracker: list[TrackerConfig] = Field(default_factory=list)
    """Experiment trackers to report to, one `[[tracker]]` each."""
    algorithm: recipe.RecipeConfig | None = None
    """GRPO-like algorithm in a single section, which expands into keys of `trainer` and `orchestrator.train.algo`. The
    resolved config contains only those keys."""

    @model_validator(mode="before")
    @classmethod
    def _expand_the_recipe(cls, data: Any) -> Any:
        return recipe.expand(data) if isinstance(data, dict) else data

    @model_validator(mode="before")
    @classmethod
    def _share_root_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = {**data, **{process: dict(data.get(process) or {}) for process in PROCESSES}}
        for key, processes in SHARED.items():
            if key in data:
                for process in processes:
                    data[process].setdefault(key, data[key])
        if "model" not in data:  # a model that only one process sets is that of the run
            data["model"] = next((data[p]["model"] for p in PROCESSES if "model" in data[p]), None)
            if data["model"] is None:
                del data["model"]
            else:
                for process in PROCESSES:
                    data[process].setdefault("model", data["model"])
        return data

    @model_validator(mode="after")
    def _check_shared_keys(self) -> Self:
        for key, processes in SHARED.items():
            for process in processes:
                if getattr(getattr(self, process), key) != getattr(self, key):
                    raise ValueError(
                        f"{process}.{key} differs from {key} at the root; set it only at the root"
                    )
        return self

    @model_validator(mode="after")
    def _configure_heads(self) -> Self:
        """Set the head size that the loss requires, and raise the engine's candidate limit if it is too low."""
        train, inference, size = self.orchestrator.train, self.inference, self.trainer.loss.head_size
        if "capture_head" in train.model_fields_set and train.capture_head != size:
            raise ValueError(
                f"orchestrator.train.capture_head is {train.capture_head}, but trainer.loss needs "
                f"{'no heads' if size is None else f'heads of {size} tokens'}; remove it, since it is derived from the "
                "loss (score_centering, score_centering_topk)"
            )
        if size is None:
            return self
        train.capture_head, needed = size, size + HEAD_MARGIN
        if inference.max_logprobs < needed and "max_logprobs" in inference.model_fields_set:
            raise ValueError(
                f"inference.max_logprobs is {inference.max_logprobs}, but heads of {size} tokens "
                f"(trainer.loss.score_centering_topk) need {needed} candidates per token; raise it or remove it"
            )
        inference.max_logprobs = max(inference.max_logprobs, needed)
        return self

    @model_validator(mode="after")
    def _configure_weight_format(self) -> Self:
        self.orchestrator.adapter = self.trainer.lora is not None
        self.inference.vllm.lora_rank = self.trainer.lora.rank if self.trainer.lora is not None else None
        self.inference.vllm.weight_transfer = self.trainer.weights.transfer == "nccl"
        return self

    @model_validator(mode="after")
    def _check_engine_supports_weights(self) -> Self:
        if self.trainer.weights.transfer == "nccl" and self.inference.engine != "vllm":
            raise ValueError(
                f'trainer.weights.transfer = "nccl" needs vLLM, but inference.engine is {self.inference.engine!r}; set '
                'inference.engine = "vllm", or remove trainer.weights.transfer'
            )
        if self.trainer.weights.delta and self.inference.engine == "vllm":
            raise ValueError(
                "trainer.weights.delta needs the embedded engine, but inference.engine is 'vllm', which fuses and "
                "shards parameters and cannot update single elements; remove trainer.weights.delta"
            )
        return self

    @model_validator(mode="after")
    def _check_aggregation(self) -> Self:
        prompts = [
            source.name for source in self.orchestrator.train.source if source.algo.rl_aggregation == "prompt"
        ]
        if prompts and self.trainer.loss_agg_mode != "token-mean":
            raise ValueError(
                f"trainer.loss_agg_mode is {self.trainer.loss_agg_mode!r}, but source {prompts[0]!r} has "
                'algo.loss_aggregation = "prompt", and the rl loss has a single aggregation; remove one of the two'
            )
        return self

    @model_validator(mode="after")
    def _check_servers(self) -> Self:
        if self.inference.replicas == 0 and "base_url" not in self.orchestrator.client.model_fields_set:
            raise ValueError(
                "inference.replicas is 0, so no server is started, but orchestrator.client.base_url is not set; set it "
                "to the addresses of running servers, or raise inference.replicas"
            )
        return self

    @model_validator(mode="after")
    def _check_single_device(self) -> Self:
        if self.share_device and (self.launcher == "ray" or self.slurm.nodes > 1):
            raise ValueError(
                f"share_device = true requires a single machine, but launcher is {self.launcher!r} and slurm.nodes "
                f"is {self.slurm.nodes}; remove share_device, or use launcher 'local', or 'slurm' with slurm.nodes = 1"
            )
        return self

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        if not self.orchestrator.train.source:
            raise ValueError(
                "there is no training environment; add [[orchestrator.train.source]] with env.taskset.id"
            )
        return self
