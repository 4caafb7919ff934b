"""The `algorithm` section at the root of a run: the choices of seed 002 in one place, which expand into the keys that
the processes read.

What the section leaves out has the seed's defaults, unless the user sets the key that it stands for. What the section
sets must not be something else there.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, field_validator, model_validator

from braidrl.configs.algorithm import AdvantageNorm
from braidrl.configs.compat import legacy
from braidrl.configs.core.base import BaseConfig
from braidrl.configs.trainer.config import LossAggregation
from braidrl.configs.trainer.offpolicy import ISCorrectionConfig, M2POConfig

SECTION = "algorithm"
ALGO, LOSS = "orchestrator.train.algo", "trainer.loss"
NORMALIZED = ("grpo", "echo")
"""Values of `algo.type` that have an `advantage_norm`."""
CLIPPED = {"clip_ratio_low": ("grpo", "gspo"), "clip_ratio_high": ("grpo", "gspo"), "clip_ratio_c": ("grpo",)}
"""Keys of a loss, and the values of `loss.type` that have them."""


class Switch(BaseConfig):
    """A block that is off unless it says otherwise."""

    renamed: ClassVar[dict[str, str]] = {}
    """Keys that have another name where the trainer reads them."""

    enable: bool = False
    """Whether it is on; as long as it is off, the other keys do nothing."""


class ISCorrectionSwitch(Switch, ISCorrectionConfig):
    """Weigh the loss by old / mu (`trainer.is_correction`)."""


class M2POSwitch(Switch, M2POConfig):
    """Leave out the tokens that are most off-policy (`trainer.m2po`)."""


class OPSMSwitch(Switch):
    """Drop bad sequences that the policy has moved away from (`trainer.opsm`)."""

    delta: float = Field(0.1, ge=0)
    """Largest mean log-ratio to the current policy of a sequence that still trains, in nats a token."""


class RefKLSwitch(Switch):
    """Keep the policy near a reference (`trainer.reference_kl`)."""

    renamed: ClassVar[dict[str, str]] = {"ref_dist_ckpt_path": "path", "ref_hf_model_path": "path"}

    coef: float = Field(0.001, gt=0)
    """Weight of the term."""
    kl_type: Literal["k1", "k2", "k3"] = "k3"
    """Estimator, from the sampled token alone."""
    use_unbiased_kl: bool = False
    """Multiply it by the ratio pi / old, differentiated."""
    update_interval: int = Field(0, ge=0)
    """The reference becomes the policy after every n-th step; 0: never."""
    ref_dist_ckpt_path: str | None = None
    """The reference: a checkpoint of a run (`outputs/run/checkpoints/step_000100`)."""
    ref_hf_model_path: str | None = None
    """The reference: a Hugging Face folder."""

    @model_validator(mode="after")
    def _has_one_reference(self) -> Self:
        if self.enable and (self.ref_dist_ckpt_path is None) == (self.ref_hf_model_path is None):
            raise ValueError(
                f"enable needs one reference, and {'none is' if self.ref_hf_model_path is None else 'two are'} set: "
                "set ref_hf_model_path to a Hugging Face folder, or ref_dist_ckpt_path to a checkpoint of a run"
            )
        return self


class RecipeConfig(BaseConfig):
    """A GRPO-like algorithm in one section; the resolved config shows the keys that it expands into."""

    advantage_estimator: Literal["grpo"] = "grpo"
    """How rewards become advantages (`orchestrator.train.algo.type`)."""
    advantage_norm_mode: AdvantageNorm = "group_zscore"
    """What a reward is measured against (`orchestrator.train.algo.advantage_norm`)."""
    policy_loss: Literal["grpo", "gspo"] = "grpo"
    """The rl loss (`trainer.loss.type`)."""
    loss_agg_mode: LossAggregation = "token-mean"
    """What the rl loss is the mean of (`trainer.loss_agg_mode`)."""
    clip_ratio_low: float = Field(0.2, ge=0, le=1)
    """The ratio pi / old counts from 1 - this (`trainer.loss.clip_ratio_low`)."""
    clip_ratio_high: float = Field(0.28, ge=0)
    """The ratio pi / old counts up to 1 + this (`trainer.loss.clip_ratio_high`)."""
    clip_ratio_c: float = Field(10.0, gt=1)
    """A negative advantage counts at most this often (`trainer.loss.clip_ratio_c`); gspo does not read it."""
    is_correction: ISCorrectionSwitch = Field(default_factory=ISCorrectionSwitch)
    """Importance weights."""
    m2po: M2POSwitch = Field(default_factory=M2POSwitch)
    """Second-moment trust region."""
    opsm: OPSMSwitch = Field(default_factory=OPSMSwitch)
    """Off-policy sequence masking."""
    entropy_coef: float = 0.0
    """This times the mean entropy is subtracted from the rl loss (`trainer.entropy_coef`)."""
    ref_kl: RefKLSwitch = Field(default_factory=RefKLSwitch)
    """Reference KL."""

    @field_validator("advantage_estimator", mode="before")
    @classmethod
    def _grpo(cls, value: Any) -> Any:
        if value != "grpo":
            raise ValueError(
                f'{value!r} is not "grpo"; for an algorithm of your own, or another of Braid\'s, remove '
                f"advantage_estimator and set {ALGO}.type (`braid algorithms`, docs/extending.md)"
            )
        return value

    @field_validator("policy_loss", mode="before")
    @classmethod
    def _grpo_or_gspo(cls, value: Any) -> Any:
        if value not in ("grpo", "gspo"):
            raise ValueError(
                f'{value!r} is neither "grpo" nor "gspo"; for a loss of your own, or another of Braid\'s, remove '
                f'policy_loss and set {LOSS}.type ("custom" takes {LOSS}.import_path)'
            )
        return value


@dataclass(frozen=True)
class Setting:
    """A key of the section, and the key that it stands for."""

    key: str
    """In the section."""
    path: str
    """Where a process reads it."""
    value: Any
    """None: it is off."""
    given: bool
    """Whether the user set it, or it is the seed's default."""
    types: tuple[str, ...] = ()
    """Values of `type` of the blocks that have such a key; none: its block has no `type`."""


def expand(data: dict[str, Any]) -> dict[str, Any]:
    """The keys of a run as the user wrote them, but those that its `algorithm` section stands for instead of it.

    A section that is not valid stays, for validation to say why. Raises `ValueError` where the section sets something
    and the user something else where it is read.
    """
    try:
        recipe = RecipeConfig.model_validate(data.get(SECTION))
    except ValidationError:
        return data
    expanded = {key: value for key, value in data.items() if key != SECTION}
    if isinstance(expanded.get("orchestrator"), dict):
        expanded["orchestrator"] = legacy.translate(expanded["orchestrator"])
    for setting in settings(recipe):
        _put(expanded, setting)
    return expanded


def settings(recipe: RecipeConfig) -> Iterator[Setting]:
    """All that the section stands for; of each block the `type` first."""

    def own(key: str, path: str, types: tuple[str, ...] = ()) -> Setting:
        return Setting(key, path, getattr(recipe, key), key in recipe.model_fields_set, types)

    yield own("advantage_estimator", f"{ALGO}.type")
    yield own("advantage_norm_mode", f"{ALGO}.advantage_norm", NORMALIZED)
    yield own("policy_loss", f"{LOSS}.type")
    for key, types in CLIPPED.items():
        if recipe.policy_loss in types:
            yield own(key, f"{LOSS}.{key}", types)
    yield own("loss_agg_mode", "trainer.loss_agg_mode")
    yield own("entropy_coef", "trainer.entropy_coef")
    yield from _switched("is_correction", "trainer.is_correction", recipe.is_correction)
    yield from _switched("m2po", "trainer.m2po", recipe.m2po)
    yield from _switched("opsm", "trainer.opsm", recipe.opsm)
    yield from _switched("ref_kl", "trainer.reference_kl", recipe.ref_kl)


def _switched(name: str, path: str, switch: Switch) -> Iterator[Setting]:
    if not switch.enable:
        yield Setting(f"{name}.enable", path, None, "enable" in switch.model_fields_set)
        return
    for key, value in switch:
        if key != "enable" and value is not None:
            place = f"{path}.{switch.renamed.get(key, key)}"
            yield Setting(f"{name}.{key}", place, value, key in switch.model_fields_set)


def _put(data: dict[str, Any], setting: Setting) -> None:
    """Set a key in `data`, whose blocks are copied, unless the user has set it."""
    *blocks, key = setting.path.split(".")
    block = data
    for depth, name in enumerate(blocks, start=1):
        inner = block.get(name)
        if isinstance(inner, BaseModel):
            inner = inner.model_dump(exclude_unset=True)
        if not isinstance(inner, dict | None):
            raise _clash(setting, ".".join(blocks[:depth]), inner)
        block[name] = block = dict(inner or {})
    if setting.types and block["type"] not in setting.types:
        if setting.given:
            raise _clash(setting, ".".join([*blocks, "type"]), block["type"])
    elif block.get(key) is None:
        block[key] = setting.value
    elif setting.given and not _same(setting.value, block[key]):
        raise _clash(setting, setting.path, block[key])


def _same(value: Any, seen: Any) -> bool:
    """Whether the user set a key to `value`; flags are strings."""
    if value is None:
        return seen == "None"
    try:
        return TypeAdapter(type(value)).validate_python(seen) == value
    except ValidationError:
        return False


def _clash(setting: Setting, path: str, seen: Any) -> ValueError:
    value = "false" if setting.value is None else json.dumps(setting.value)
    other = "is set" if isinstance(seen, dict) else f"is {json.dumps(seen, default=str)}"
    return ValueError(
        f"{SECTION}.{setting.key} is {value}, but {path} {other}; the first stands for {setting.path}: keep one of "
        "the two"
    )
