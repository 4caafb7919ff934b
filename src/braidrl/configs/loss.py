"""Configs of the `rl` losses of the trainer. The `ce` and `ref_kl` components have no settings."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from braidrl.configs.core.base import BaseConfig


class BaseLossConfig(BaseConfig):
    """Base class of all rl loss configs."""

    compares_with_old: ClassVar[bool] = False
    """True if the ratio is pi / old (the trainer before the step), False if it is pi / mu (the sampler)."""
    paper: ClassVar[str] = ""
    """Source of the loss: an arXiv number or a name."""
    loss_function: ClassVar[str] = ""
    """Import path `package.module:function` of the implementation, if another package provides it
    (`braidrl.configs.plugins`)."""

    @property
    def head_size(self) -> int | None:
        """Number of top sampler candidates required per token, or None."""
        return None


class IPOLossConfig(BaseLossConfig):
    """INTELLECT Policy Optimization: importance-weighted policy gradient with a trust region in probability."""

    paper: ClassVar[str] = "INTELLECT Policy Optimization"

    type: Literal["ipo"] = "ipo"
    eps: float = Field(0.3, ge=0, le=1)
    """Maximum absolute change in probability of a token that trains."""
    adv_tau: float = Field(1.0, gt=0)
    """Factor on the advantage."""


class IcePopLossConfig(BaseLossConfig):
    """IcePop: importance-weighted policy gradient with a band of ratios as trust region (arXiv:2510.18855)."""

    paper: ClassVar[str] = "arXiv:2510.18855; score centering: arXiv:2609.20807"

    type: Literal["icepop"] = "icepop"
    ratio_low: float = Field(0.2, ge=0)
    """Minimum ratio pi / mu of a token that trains."""
    ratio_high: float = Field(5.0, gt=0)
    """Maximum ratio pi / mu of a token that trains."""
    adv_tau: float = Field(1.0, gt=0)
    """Factor on the advantage."""
    score_centering: bool = False
    """Subtract the expected update under the sampler, modelled from its most likely tokens (arXiv:2609.20807)."""
    score_centering_topk: int = Field(128, ge=1)
    """Number of most likely tokens of the sampler to capture per token."""

    @model_validator(mode="after")
    def _check_band(self) -> Self:
        if self.ratio_low > self.ratio_high:
            raise ValueError(
                f"ratio_low ({self.ratio_low}) is above ratio_high ({self.ratio_high}), so no token would train; swap "
                "them"
            )
        return self

    @property
    def head_size(self) -> int | None:
        return self.score_centering_topk if self.score_centering else None


class CustomLossConfig(BaseLossConfig):
    """User function, called once per sequence (`LossInputs -> LossOutputs`)."""

    compares_with_old: ClassVar[bool] = True
    paper: ClassVar[str] = "user-defined"

    type: Literal["custom"] = "custom"
    import_path: str
    """Import path of the function: `my_module.function`, with the module in the current directory or on the Python
    path, or `path/file.py:function`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function."""

    @field_validator("import_path")
    @classmethod
    def _check_import_path(cls, value: str) -> str:
        if "." not in value and ":" not in value:
            raise ValueError(
                f"{value!r} is not the import path of a function; set it to my_module.function or file.py:function"
            )
        return value


class GRPOLossConfig(BaseLossConfig):
    """Clipped surrogate with one ratio per token, asymmetric bounds (DAPO) and dual clip (arXiv:1912.09729)."""

    compares_with_old: ClassVar[bool] = True
    paper: ClassVar[str] = (
        "arXiv:2402.03300; asymmetric bounds: arXiv:2503.14476; dual clip: arXiv:1912.09729"
    )

    type: Literal["grpo"] = "grpo"
    clip_ratio_low: float = Field(0.2, ge=0, le=1)
    """The lower clip bound of the ratio pi / old is 1 - `clip_ratio_low`."""
    clip_ratio_high: float = Field(0.28, ge=0)
    """The upper clip bound of the ratio pi / old is 1 + `clip_ratio_high`."""
    clip_ratio_c: float = Field(10.0, gt=1)
    """Dual clip: upper bound of the ratio for tokens with a negative advantage."""


class GSPOLossConfig(BaseLossConfig):
    """Clipped surrogate with one ratio per sequence, the geometric mean of its tokens' ratios (arXiv:2507.18071).

    The defaults are those of `grpo`. The bounds in the paper are 3e-4 and 4e-4.
    """

    compares_with_old: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv:2507.18071"

    type: Literal["gspo"] = "gspo"
    clip_ratio_low: float = Field(0.2, ge=0, le=1)
    """The lower clip bound of the sequence ratio is 1 - `clip_ratio_low`."""
    clip_ratio_high: float = Field(0.28, ge=0)
    """The upper clip bound of the sequence ratio is 1 + `clip_ratio_high`."""


LossConfig = Annotated[
    IPOLossConfig | IcePopLossConfig | CustomLossConfig | GRPOLossConfig | GSPOLossConfig,
    Field(discriminator="type"),
]
"""Union of the built-in rl loss configs, discriminated by `type`. `braidrl.configs.plugins` adds those of other
packages."""
