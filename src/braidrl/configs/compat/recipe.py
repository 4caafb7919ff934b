"""The `algorithm` section at the root of a run, which expands into keys of the trainer and the algorithm
(`docs/configuration.md`, "One section for the algorithm").

Keys that the section omits take its own defaults, unless the user sets the key that they expand into. Setting both to
different values is an error.
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
"""Keys of a loss, with the values of `loss.type` that have them."""


class Switch(BaseConfig):
    """Base class of a block that is off by default."""

    renamed: ClassVar[dict[str, str]] = {}
    """Keys with a different name in the trainer's config."""

    enable: bool = False
    """Turn the block on. If false, its other keys have no effect."""


class ISCorrectionSwitch(Switch, ISCorrectionConfig):
    """Importance-sampling correction: weight the loss by old / mu (`trainer.is_correction`)."""


class M2POSwitch(Switch, M2POConfig):
    """M2PO: drop the most off-policy tokens (`trainer.m2po`)."""


class OPSMSwitch(Switch):
    """OPSM: drop sequences with a negative advantage that the policy has already moved away from (`trainer.opsm`)."""

    delta: float = Field(0.1, ge=0)
    """Maximum mean of log(old / policy) over a sequence with a negative advantage, in nats per token. Sequences above
    it have no policy loss."""


class RefKLSwitch(Switch):
    """KL penalty towards a reference model (`trainer.reference_kl`)."""

    renamed: ClassVar[dict[str, str]] = {"ref_dist_ckpt_path": "path", "ref_hf_model_path": "path"}

    coef: float = Field(0.001, gt=0)
    """Coefficient of the penalty."""
    kl_type: Literal["k1", "k2", "k3"] = "k3"
    """KL estimator on the sampled token."""
    use_unbiased_kl: bool = False
    """Multiply the estimate by the differentiated ratio pi / old."""
    update_interval: int = Field(0, ge=0)
    """Replace the reference by the policy after every n-th step. 0: never."""
    ref_dist_ckpt_path: str | None = None
    """Checkpoint of a run to use as reference (`outputs/run/checkpoints/step_000100`)."""
    ref_hf_model_path: str | None = None
    """Hugging Face folder to use as reference."""

    @model_validator(mode="after")
    def _check_reference(self) -> Self:
        if self.enable and (self.ref_dist_ckpt_path is None) == (self.ref_hf_model_path is None):
            raise ValueError(
                f"enable = true needs one reference, but {'none is' if self.ref_hf_model_path is None else 'two are'} "
                "set; set either ref_hf_model_path to a Hugging Face folder, or ref_dist_ckpt_path to a checkpoint of "
                "a run"
            )
        return self


class RecipeConfig(BaseConfig):
    """GRPO-like algorithm in a single section. The resolved config contains the keys that it expands into."""

    advantage_estimator: Literal["grpo"] = "grpo"
    """Algorithm (`orchestrator.train.algo.type`)."""
    advantage_norm_mode: AdvantageNorm = "group_zscore"
    """Normalisation of rewards to advantages (`orchestrator.train.algo.advantage_norm`)."""
    policy_loss: Literal["grpo", "gspo"] = "grpo"
    """Loss of the `rl` component (`trainer.loss.type`)."""
    loss_agg_mode: LossAggregation = "token-mean"
    """Aggregation of the rl loss (`trainer.loss_agg_mode`)."""
    clip_ratio_low: float = Field(0.2, ge=0, le=1)
    """The lower clip bound of the ratio pi / old is 1 - `clip_ratio_low` (`trainer.loss.clip_ratio_low`)."""
    clip_ratio_high: float = Field(0.28, ge=0)
    """The upper clip bound of the ratio pi / old is 1 + `clip_ratio_high` (`trainer.loss.clip_ratio_high`)."""
    clip_ratio_c: float = Field(10.0, gt=1)
    """Dual clip: upper bound of the ratio for negative advantages (`trainer.loss.clip_ratio_c`). Ignored by `gspo`."""
    is_correction: ISCorrectionSwitch = Field(default_factory=ISCorrectionSwitch)
    """Importance-sampling correction."""
    m2po: M2POSwitch = Field(default_factory=M2POSwitch)
    """Second-moment trust region (M2PO)."""
    opsm: OPSMSwitch = Field(default_factory=OPSMSwitch)
    """Off-policy sequence masking (OPSM)."""
    entropy_coef: float = 0.0
    """Coefficient of the mean entropy, which is subtracted from the rl loss (`trainer.entropy_coef`)."""
    ref_kl: RefKLSwitch = Field(default_factory=RefKLSwitch)
    """KL penalty towards a reference model."""

    @field_validator("advantage_estimator", mode="before")
    @classmethod
    def _check_estimator(cls, value: Any) -> Any:
        if value != "grpo":
            raise ValueError(
                f'{value!r} is not "grpo", the only algorithm of this section; for any other, remove '
                f"advantage_estimator and set {ALGO}.type (see `braid algorithms` and docs/extending.md)"
            )
        return value

    @field_validator("policy_loss", mode="before")
    @classmethod
    def _check_policy_loss(cls, value: Any) -> Any:
        if value not in ("grpo", "gspo"):
            raise ValueError(
                f'{value!r} is neither "grpo" nor "gspo", the losses of this section; for any other, remove '
                f'policy_loss and set {LOSS}.type ("custom" takes {LOSS}.import_path)'
            )
        return value


@dataclass(frozen=True)
class Setting:
    """A key of the section and the key that it expands into."""

    key: str
    """Key in the section."""
    path: str
    """Dotted path of the key that it expands into."""
    value: Any
    """Value, or None if the block is off."""
    given: bool
    """True if the user set the key, False if it has its default."""
    types: tuple[str, ...] = ()
    """Values of the block's `type` that have this key. Empty if the block has no `type`."""


def expand(data: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a run with its `algorithm` section replaced by the keys that it expands into.

    An invalid section is kept, so that validation reports its errors. Raises `ValueError` if the section and the key
    that it expands into are set to different values.
    """
    try:
        recipe = RecipeConfig.model_validate(data.get(SECTION))
    except ValidationError:  # also without the section, which is None then
        return data
    expanded = {key: value for key, value in data.items() if key != SECTION}
    if isinstance(expanded.get("orchestrator"), dict):
        expanded["orchestrator"] = legacy.translate(expanded["orchestrator"])
    for setting in settings(recipe):
        _apply(expanded, setting)
    return expanded


def settings(recipe: RecipeConfig) -> Iterator[Setting]:
    """Yield the keys that the section expands into. Each block's `type` is first, because `_apply` reads it."""

    def setting(key: str, path: str, types: tuple[str, ...] = ()) -> Setting:
        return Setting(key, path, getattr(recipe, key), key in recipe.model_fields_set, types)

    yield setting("advantage_estimator", f"{ALGO}.type")
    yield setting("advantage_norm_mode", f"{ALGO}.advantage_norm", NORMALIZED)
    yield setting("policy_loss", f"{LOSS}.type")
    for key, types in CLIPPED.items():
        if recipe.policy_loss in types:
            yield setting(key, f"{LOSS}.{key}", types)
    yield setting("loss_agg_mode", "trainer.loss_agg_mode")
    yield setting("entropy_coef", "trainer.entropy_coef")
    yield from _switch_settings("is_correction", "trainer.is_correction", recipe.is_correction)
    yield from _switch_settings("m2po", "trainer.m2po", recipe.m2po)
    yield from _switch_settings("opsm", "trainer.opsm", recipe.opsm)
    yield from _switch_settings("ref_kl", "trainer.reference_kl", recipe.ref_kl)


def _switch_settings(name: str, path: str, switch: Switch) -> Iterator[Setting]:
    if not switch.enable:
        yield Setting(f"{name}.enable", path, None, "enable" in switch.model_fields_set)
        return
    for key, value in switch:
        if key != "enable" and value is not None:
            target = f"{path}.{switch.renamed.get(key, key)}"
            yield Setting(f"{name}.{key}", target, value, key in switch.model_fields_set)


def _apply(data: dict[str, Any], setting: Setting) -> None:
    """Set a key in `data` unless the user has set it. Blocks are copied, so that the caller's data does not change."""
    *blocks, key = setting.path.split(".")
    block = data
    for depth, name in enumerate(blocks, start=1):
        inner = block.get(name)
        if isinstance(inner, BaseModel):
            inner = inner.model_dump(exclude_unset=True)
        if not isinstance(inner, dict | None):
            raise _conflict(setting, ".".join(blocks[:depth]), inner)
        block[name] = block = dict(inner or {})
    if setting.types and block["type"] not in setting.types:
        if setting.given:
            raise _conflict(setting, ".".join([*blocks, "type"]), block["type"])
    elif block.get(key) is None:
        block[key] = setting.value
    elif setting.given and not _equal(setting.value, block[key]):
        raise _conflict(setting, setting.path, block[key])


def _equal(value: Any, seen: Any) -> bool:
    """Return True if the user's value `seen`, which is a string if it comes from a flag, equals `value`."""
    if value is None:
        return seen == "None"
    try:
        return TypeAdapter(type(value)).validate_python(seen) == value
    except ValidationError:
        return False


def _conflict(setting: Setting, path: str, seen: Any) -> ValueError:
    value = "false" if setting.value is None else json.dumps(setting.value)
    other = "is set" if isinstance(seen, dict) else f"is {json.dumps(seen, default=str)}"
    return ValueError(
        f"{SECTION}.{setting.key} is {value}, but {path} {other}; the first expands into {setting.path}, so remove "
        "one of the two"
    )
