"""Algorithms that learn from another model, or from the policy shown a demonstration: OPD, OPSD and SFT."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from braidrl.configs.algorithm.base import ActionLossType, Barrier, BaseAlgorithmConfig
from braidrl.configs.model import FrozenModelConfig, RendererConfig


class OPDConfig(BaseAlgorithmConfig):
    """On-policy distillation: the policy samples, a frozen teacher scores every token."""

    action_loss_type: ClassVar[ActionLossType] = "ref_kl"
    barrier: ClassVar[Barrier] = "episode"
    needs_model: ClassVar[bool] = True
    paper: ClassVar[str] = "Thinking Machines, 2025"

    type: Literal["opd"] = "opd"
    teacher: FrozenModelConfig
    """The frozen model toward which the reverse KL pulls; it has the policy's tokenizer."""
    max_concurrent: int = Field(32, ge=1)
    """Most scoring requests at once."""
    timeout: float = Field(300.0, gt=0)
    """Deadline of one score, retries included, in seconds; also of the checks at the start."""

    @field_validator("teacher", mode="before")
    @classmethod
    def _not_the_policy(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(
                f'{value!r} is not a frozen model: the KL of "policy" to itself is zero; set teacher.name and '
                'teacher.base_url, or use type = "opsd" to distil the policy from itself with a demonstration'
            )
        return value


class OPSDConfig(BaseAlgorithmConfig):
    """On-policy self-distillation: the live policy, shown a demonstration, is its own teacher."""

    action_loss_type: ClassVar[ActionLossType] = "ref_kl"
    barrier: ClassVar[Barrier] = "episode"
    needs_model: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv:2601.19897"

    type: Literal["opsd"] = "opsd"
    demo_key: str = "demonstration"
    """Where a task holds its demonstration: a key of its `info`, or a field of its own."""
    template: str = (
        "Here is a demonstration of a correct answer:\n\n{demonstration}\n\nAnswer in your own words."
    )
    """The system message that shows it to the teacher; `{demonstration}` is replaced."""
    renderer: RendererConfig = Field(default_factory=RendererConfig)
    """How that message becomes tokens of the policy's tokenizer; set it where the policy's is not `auto`."""
    max_concurrent: int = Field(32, ge=1)
    """Most scoring requests at once."""
    timeout: float = Field(300.0, gt=0)
    """Deadline of one score, retries included, in seconds."""

    @field_validator("template")
    @classmethod
    def _shows_the_demonstration(cls, value: str) -> str:
        if "{demonstration}" not in value:
            raise ValueError("the template has no {demonstration}, so the teacher would see none; add it")
        return value

    @field_validator("renderer", mode="before", json_schema_input_type=RendererConfig | str)
    @classmethod
    def _family(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class SFTDistillConfig(BaseAlgorithmConfig):
    """Hard distillation: a frozen model samples, the policy imitates its tokens."""

    action_loss_type: ClassVar[ActionLossType] = "ce"
    barrier: ClassVar[Barrier] = "episode"
    needs_model: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv:1606.07947"

    type: Literal["sft"] = "sft"

    @model_validator(mode="after")
    def _has_a_teacher(self) -> Self:
        if self.sampling.source == "policy":
            raise ValueError(
                "sft imitates a frozen model, and the policy's own tokens are no target: set "
                "sampling.source.name and sampling.source.base_url"
            )
        return self
