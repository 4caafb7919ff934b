"""The `rl` loss of the trainer. The `ce` and `ref_kl` components are fixed and take no settings."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from braidrl.configs.core.base import BaseConfig


class BaseLossConfig(BaseConfig):
    """What every rl loss has."""

    compares_with_old: ClassVar[bool] = False
    """Whether its ratio is pi / old, `old` being the trainer before the step; else it is pi / mu, the sampler's."""
    paper: ClassVar[str] = ""
    """Where the loss comes from: an arXiv number, or a name."""
    loss_function: ClassVar[str] = ""
    """`package.module:function` of a loss that another package brings (`braidrl.configs.plugins`)."""

    @property
    def head_size(self) -> int | None:
        """Most likely tokens of the sampler that it needs at each of its tokens; None: none."""
        return None


class IPOLossConfig(BaseLossConfig):
    """INTELLECT policy optimisation: importance-weighted policy gradient with a trust region in probability."""

    paper: ClassVar[str] = "INTELLECT Policy Optimization"

    type: Literal["ipo"] = "ipo"
    eps: float = Field(0.3, ge=0, le=1)
    """Largest absolute change of a token's probability that still trains."""
    adv_tau: float = Field(1.0, gt=0)
    """Factor on the advantage."""


class IcePopLossConfig(BaseLossConfig):
    """Importance-weighted policy gradient whose trust region is a band of ratios (arXiv 2510.18855)."""

    paper: ClassVar[str] = "arXiv:2510.18855; score centering: arXiv:2609.20807"

    type: Literal["icepop"] = "icepop"
    ratio_low: float = Field(0.2, ge=0)
    """Lowest ratio pi / mu that still trains."""
    ratio_high: float = Field(5.0, gt=0)
    """Highest ratio pi / mu that still trains."""
    adv_tau: float = Field(1.0, gt=0)
    """Factor on the advantage."""
    score_centering: bool = False
    """Subtract the expected update of the sampler, modelled from its most likely tokens (arXiv 2609.20807)."""
    score_centering_topk: int = Field(128, ge=1)
    """How many of the sampler's most likely tokens are captured for each token."""

    @model_validator(mode="after")
    def _is_a_band(self) -> Self:
        if self.ratio_low > self.ratio_high:
            raise ValueError(
                f"ratio_low ({self.ratio_low}) is above ratio_high ({self.ratio_high}), so no token would train"
            )
        return self

    @property
    def head_size(self) -> int | None:
        return self.score_centering_topk if self.score_centering else None


class CustomLossConfig(BaseLossConfig):
    """A function of your own, called once a sequence (`LossInputs -> LossOutputs`)."""

    compares_with_old: ClassVar[bool] = True
    paper: ClassVar[str] = "yours"

    type: Literal["custom"] = "custom"
    import_path: str
    """`my_module.function` of a module in the current directory or on the Python path, or `path/file.py:function`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function."""

    @field_validator("import_path")
    @classmethod
    def _names_a_function(cls, value: str) -> str:
        if "." not in value and ":" not in value:
            raise ValueError(f"{value!r} names no function; write my_module.function or file.py:function")
        return value


class GRPOLossConfig(BaseLossConfig):
    """Clipped surrogate with a ratio a token, asymmetric bounds (DAPO) and dual clip (arXiv 1912.09729)."""

    compares_with_old: ClassVar[bool] = True
    paper: ClassVar[str] = (
        "arXiv:2402.03300; asymmetric bounds: arXiv:2503.14476; dual clip: arXiv:1912.09729"
    )

    type: Literal["grpo"] = "grpo"
    clip_ratio_low: float = Field(0.2, ge=0, le=1)
    """The ratio pi / old counts from 1 - this ..."""
    clip_ratio_high: float = Field(0.28, ge=0)
    """... to 1 + this."""
    clip_ratio_c: float = Field(10.0, gt=1)
    """A negative advantage counts at most this often."""


class GSPOLossConfig(BaseLossConfig):
    """Clipped surrogate with one ratio a sequence, the geometric mean of its tokens' (arXiv 2507.18071).

    The paper's bounds are 3e-4 and 4e-4; the defaults are those of `grpo`.
    """

    compares_with_old: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv:2507.18071"

    type: Literal["gspo"] = "gspo"
    clip_ratio_low: float = Field(0.2, ge=0, le=1)
    """The ratio counts from 1 - this ..."""
    clip_ratio_high: float = Field(0.28, ge=0)
    """... to 1 + this."""


LossConfig = Annotated[
    IPOLossConfig | IcePopLossConfig | CustomLossConfig | GRPOLossConfig | GSPOLossConfig,
    Field(discriminator="type"),
]
"""Every built-in rl loss's config, told apart by `type`; `braidrl.configs.plugins` adds those of other packages."""
