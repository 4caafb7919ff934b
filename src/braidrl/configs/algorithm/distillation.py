"""Algorithms that learn from another model or from demonstrations: OPD, OPSD and SFT."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from braidrl.configs.algorithm.base import ActionLossType, Barrier, BaseAlgorithmConfig
from braidrl.configs.model import FrozenModelConfig, RendererConfig


class OPDConfig(BaseAlgorithmConfig):
    """On-policy distillation: the policy samples, and a frozen teacher scores every token."""

    action_loss_type: ClassVar[ActionLossType] = "ref_kl"
    barrier: ClassVar[Barrier] = "episode"
    needs_model: ClassVar[bool] = True
    paper: ClassVar[str] = "Thinking Machines, 2025"

    type: Literal["opd"] = "opd"
    teacher: FrozenModelConfig
    """Frozen model towards which the reverse KL pulls the policy. Must have the policy's tokenizer."""
    max_concurrent: int = Field(32, ge=1)
    """Maximum number of concurrent scoring requests."""
    timeout: float = Field(300.0, gt=0)
    """Deadline of a scoring request in seconds, including retries. Also applies to the checks at startup."""

    @field_validator("teacher", mode="before")
    @classmethod
    def _reject_policy(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(
                f"{value!r} is not a frozen model (the KL of the policy to itself is zero); set teacher.name and "
                'teacher.base_url, or use type = "opsd" to distil from the policy shown a demonstration'
            )
        return value


class OPSDConfig(BaseAlgorithmConfig):
    """On-policy self-distillation: the teacher is the live policy with a demonstration in its prompt."""

    action_loss_type: ClassVar[ActionLossType] = "ref_kl"
    barrier: ClassVar[Barrier] = "episode"
    needs_model: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv:2601.19897"

    type: Literal["opsd"] = "opsd"
    demo_key: str = "demonstration"
    """Key of the task's `info`, or field of the task, that contains the demonstration."""
    template: str = (
        "Here is a demonstration of a correct answer:\n\n{demonstration}\n\nAnswer in your own words."
    )
    """System message that shows the demonstration to the teacher. Must contain `{demonstration}`."""
    renderer: RendererConfig = Field(default_factory=RendererConfig)
    """Renderer of that message. Set it to the policy's renderer if that is not `auto`."""
    max_concurrent: int = Field(32, ge=1)
    """Maximum number of concurrent scoring requests."""
    timeout: float = Field(300.0, gt=0)
    """Deadline of a scoring request in seconds, including retries."""

    @field_validator("template")
    @classmethod
    def _check_placeholder(cls, value: str) -> str:
        if "{demonstration}" not in value:
            raise ValueError(
                "the template has no {demonstration}, so the teacher would not see the answer; add it"
            )
        return value

    @field_validator("renderer", mode="before", json_schema_input_type=RendererConfig | str)
    @classmethod
    def _expand_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class SFTDistillConfig(BaseAlgorithmConfig):
    """Hard distillation: a frozen model samples, and the policy imitates its tokens."""

    action_loss_type: ClassVar[ActionLossType] = "ce"
    barrier: ClassVar[Barrier] = "episode"
    needs_model: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv:1606.07947"

    type: Literal["sft"] = "sft"

    @model_validator(mode="after")
    def _check_teacher(self) -> Self:
        if self.sampling.source == "policy":
            raise ValueError(
                "sft imitates a frozen model, but sampling.source is the policy itself; set sampling.source.name and "
                "sampling.source.base_url"
            )
        return self
