"""One file for the whole run: `braid rl @ run.toml`."""

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
"""Keys at the root, and the processes that take them. A process must not set one of them to something else."""

SHARED_COPIES = frozenset(f"{process}.{key}" for key, processes in SHARED.items() for process in processes)
"""The processes' copies of the shared keys, which `--help` leaves out."""


class RLConfig(BaseConfig):
    """A reinforcement-learning run of three cooperating processes."""

    model: ModelConfig
    """The policy."""
    output_dir: Path = Path("outputs/run")
    """Run folder: resolved config, logs, metrics, episodes, weights, checkpoints."""
    max_steps: int = Field(100, ge=1)
    """Optimizer steps."""
    seq_len: int = Field(2048, ge=2)
    """Context limit in tokens."""
    seed: int = Field(0, ge=0)
    """Seeds the whole run."""
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    """When to save."""
    share_device: bool = False
    """Trainer and inference have one device by turns (docs/one_gpu.md); strictly on-policy."""
    trainer: TrainerConfig
    """The trainer process."""
    orchestrator: OrchestratorConfig
    """The orchestrator process."""
    inference: InferenceConfig
    """The inference process."""
    launcher: Literal["local", "ray", "slurm"] = "local"
    """Where the processes are started: on this machine, on a Ray cluster, or in a SLURM job."""
    ray: RayConfig = Field(default_factory=RayConfig)
    """The Ray cluster."""
    slurm: SlurmConfig = Field(default_factory=SlurmConfig)
    """The SLURM job."""
    stop_timeout: float = Field(15.0, gt=0)
    """Seconds that processes get to end by themselves before they are killed."""
    tracker: list[TrackerConfig] = Field(default_factory=list)
    """Experiment trackers that the run also reports to, one `[[tracker]]` each."""
    algorithm: recipe.RecipeConfig | None = None
    """A GRPO-like algorithm in one section, instead of the keys of `trainer` and `orchestrator.train.algo` that it
    expands into; resolved, it is gone."""

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
        if "model" not in data:
            data["model"] = next((data[p]["model"] for p in PROCESSES if "model" in data[p]), None)
            if data["model"] is None:
                del data["model"]
            else:
                for process in PROCESSES:
                    data[process].setdefault("model", data["model"])
        return data

    @model_validator(mode="after")
    def _processes_agree(self) -> Self:
        for key, processes in SHARED.items():
            for process in processes:
                if getattr(getattr(self, process), key) != getattr(self, key):
                    raise ValueError(
                        f"{process}.{key} differs from {key} at the root; a run has one {key}: set it at the root alone"
                    )
        return self

    @model_validator(mode="after")
    def _capture_what_the_loss_needs(self) -> Self:
        """Let the orchestrator capture the heads that the loss needs, and the engine give the candidates for them."""
        train, inference, size = self.orchestrator.train, self.inference, self.trainer.loss.head_size
        if "capture_head" in train.model_fields_set and train.capture_head != size:
            raise ValueError(
                f"orchestrator.train.capture_head is {train.capture_head}, but trainer.loss needs "
                f"{'no heads' if size is None else f'heads of {size} tokens'}; leave it away: it follows from the loss "
                "(score_centering, score_centering_topk)"
            )
        if size is None:
            return self
        train.capture_head, needed = size, size + HEAD_MARGIN
        if inference.max_logprobs < needed and "max_logprobs" in inference.model_fields_set:
            raise ValueError(
                f"inference.max_logprobs is {inference.max_logprobs}, but heads of {size} tokens "
                f"(trainer.loss.score_centering_topk) need {needed} candidates a token; raise it or leave it away"
            )
        inference.max_logprobs = max(inference.max_logprobs, needed)
        return self

    @model_validator(mode="after")
    def _serve_what_is_trained(self) -> Self:
        self.orchestrator.adapter = self.trainer.lora is not None
        self.inference.vllm.lora_rank = self.trainer.lora.rank if self.trainer.lora is not None else None
        self.inference.vllm.weight_transfer = self.trainer.weights.transfer == "nccl"
        return self

    @model_validator(mode="after")
    def _engine_takes_what_is_published(self) -> Self:
        if self.trainer.weights.transfer == "nccl" and self.inference.engine != "vllm":
            raise ValueError(
                f'trainer.weights.transfer = "nccl" needs vLLM, and inference.engine is {self.inference.engine!r}; '
                "change one of the two"
            )
        if self.trainer.weights.delta and self.inference.engine == "vllm":
            raise ValueError(
                "trainer.weights.delta needs the embedded engine: vLLM loads whole models, whose parameters it fuses "
                "and shards, and has no route for elements of them; remove it"
            )
        return self

    @model_validator(mode="after")
    def _means_agree(self) -> Self:
        prompts = [
            source.name for source in self.orchestrator.train.source if source.algo.rl_aggregation == "prompt"
        ]
        if prompts and self.trainer.loss_agg_mode != "token-mean":
            raise ValueError(
                f"trainer.loss_agg_mode is {self.trainer.loss_agg_mode!r}, but the source {prompts[0]!r} weighs its "
                'tokens by prompt (algo.loss_aggregation = "prompt"); keep one of the two'
            )
        return self

    @model_validator(mode="after")
    def _somebody_serves(self) -> Self:
        if self.inference.replicas == 0 and "base_url" not in self.orchestrator.client.model_fields_set:
            raise ValueError(
                "inference.replicas is 0, so that no server is started, and orchestrator.client.base_url does not say "
                "where one is; set it"
            )
        return self

    @model_validator(mode="after")
    def _device_is_of_one_machine(self) -> Self:
        if self.share_device and (self.launcher == "ray" or self.slurm.nodes > 1):
            raise ValueError(
                "share_device is for one device of one machine; remove it, or use launcher 'local', or 'slurm' with "
                "one node"
            )
        return self

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if not self.orchestrator.train.source:
            raise ValueError("no training environment: add [[orchestrator.train.source]] with env.taskset.id")
        return self
