"""Configuration of evaluations, during a run and with `braid eval`."""

from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from braidrl.configs.core.base import BaseConfig, EnvBlock
from braidrl.configs.core.inherit import dump_sources, inherit_sources
from braidrl.configs.model import EvalSamplingConfig


class EvalSettings(BaseConfig):
    """Keys that evaluation sources inherit from their group."""

    num_tasks: int | None = Field(None, ge=1)
    """Number of tasks from the start of the taskset. None: all tasks of a finite taskset."""
    rollouts_per_task: int = Field(1, ge=1)
    """Number of episodes per task. pass@k is estimated for powers of two up to this number."""
    success_reward: float = 1.0
    """Minimum reward of an episode that counts as a success in pass@k."""
    sampling: EvalSamplingConfig = Field(default_factory=EvalSamplingConfig)
    """Sampling of rollouts."""
    timeout: float = Field(600.0, gt=0)
    """Deadline of an episode in seconds, including generation and scoring."""
    workers: int = Field(0, ge=0)
    """Number of worker processes that run the episodes, each with its own copy of the environment. 0: run them in the
    evaluating process."""


class EvalSourceConfig(EvalSettings):
    """An evaluation environment. Keys that it does not set are inherited from its group (`[orchestrator.eval]`)."""

    name: str | None = None
    """Unique name in metrics and records. None: the taskset id."""
    env: EnvBlock
    """Verifiers environment: `env.taskset.id` and other keys of its config class."""
    interval: int | None = Field(None, ge=1)
    """Evaluate after every n-th step of a run. None: only before the first and after the last step. Ignored by
    `braid eval`."""


class EvalGroup(EvalSettings):
    """Evaluation sources and their defaults."""

    max_concurrent: int = Field(64, ge=1)
    """Maximum number of evaluation episodes in flight, independent of training episodes."""
    source: list[EvalSourceConfig] = Field(default_factory=list)
    """Evaluation environments, one `[[source]]` each."""

    @model_validator(mode="before")
    @classmethod
    def _sources_inherit(cls, data: Any) -> Any:
        return inherit_sources(data, cls._inherited())

    @model_serializer(mode="wrap")
    def _serialize_sources(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return dump_sources(handler(self), self._inherited())

    @classmethod
    def _inherited(cls) -> tuple[str, ...]:
        return tuple(name for name in EvalSourceConfig.model_fields if name in cls.model_fields)


class EvalConfig(EvalGroup):
    """Evaluation of the live policy during a run."""

    interval: int | None = Field(None, ge=1)
    """Evaluate after every n-th step. None: only before the first step (`base_model`) and after the last (`final`)."""
    base_model: bool = True
    """Evaluate v0 before the first step."""
    final: bool = True
    """Evaluate the final policy after the last step."""
