"""Evaluation: on the live policy of a run, and by itself (`braid eval`)."""

from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from braidrl.configs.core.base import BaseConfig, EnvBlock
from braidrl.configs.core.inherit import dump_sources, inherit_sources
from braidrl.configs.model import EvalSamplingConfig


class EvalSettings(BaseConfig):
    """What an evaluation source and the group that it belongs to both have."""

    num_tasks: int | None = Field(None, ge=1)
    """Tasks from the start of the taskset; None: all of a finite one."""
    rollouts_per_task: int = Field(1, ge=1)
    """Episodes of each task; pass@k is estimated for powers of two up to it."""
    success_reward: float = 1.0
    """An episode with at least this reward has solved its task, as pass@k counts it."""
    sampling: EvalSamplingConfig = Field(default_factory=EvalSamplingConfig)
    """How rollouts are sampled."""
    timeout: float = Field(600.0, gt=0)
    """Deadline of one episode, generation and scoring together, in seconds."""
    workers: int = Field(0, ge=0)
    """Processes that play the episodes, each with its own copy of the environment; 0: the evaluating process does."""


class EvalSourceConfig(EvalSettings):
    """One evaluation environment. What it leaves unset it inherits from its group (`[orchestrator.eval]`)."""

    name: str | None = None
    """Unique name in metrics and records; None: the taskset id."""
    env: EnvBlock
    """The verifiers environment."""
    interval: int | None = Field(None, ge=1)
    """Evaluate after every n-th step of a run; None: only at its ends. (`braid eval` does not look at it.)"""


class EvalGroup(EvalSettings):
    """Evaluation sources and their defaults."""

    max_concurrent: int = Field(64, ge=1)
    """Most evaluation episodes in flight, whatever else is."""
    source: list[EvalSourceConfig] = Field(default_factory=list)
    """The environments, one `[[source]]` each."""

    @model_validator(mode="before")
    @classmethod
    def _sources_inherit(cls, data: Any) -> Any:
        return inherit_sources(data, cls._inherited())

    @model_serializer(mode="wrap")
    def _dump_what_loads_back(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return dump_sources(handler(self), self._inherited())

    @classmethod
    def _inherited(cls) -> tuple[str, ...]:
        return tuple(name for name in EvalSourceConfig.model_fields if name in cls.model_fields)


class EvalConfig(EvalGroup):
    """Evaluation on the live policy during a run."""

    interval: int | None = Field(None, ge=1)
    """Evaluate after every n-th step; None: only at the ends."""
    base_model: bool = True
    """Evaluate v0 before the first step."""
    final: bool = True
    """Evaluate the last policy."""
