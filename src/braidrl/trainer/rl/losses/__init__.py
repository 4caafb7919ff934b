"""Losses, one module each. `ce` and `ref_kl` are fixed components. The others are values of `trainer.loss.type`.

Imports `trainer.rl.loss` and `configs`, and nothing of the step that calls them.
Start with `grpo.py`.
"""

from collections.abc import Callable
from functools import partial

from braidrl.configs.core.faults import tag_of
from braidrl.configs.loss import BaseLossConfig, CustomLossConfig
from braidrl.configs.plugins import LOSS
from braidrl.trainer.rl.loss import Loss, LossOutputs
from braidrl.trainer.rl.losses.custom import custom_loss, load_loss
from braidrl.trainer.rl.losses.grpo import grpo_loss
from braidrl.trainer.rl.losses.gspo import gspo_loss
from braidrl.trainer.rl.losses.icepop import icepop_loss
from braidrl.trainer.rl.losses.ipo import ipo_loss

LOSS_FUNCTIONS: dict[str, Callable[..., LossOutputs]] = {
    "ipo": ipo_loss,
    "icepop": icepop_loss,
    "custom": custom_loss,
    "grpo": grpo_loss,
    "gspo": gspo_loss,
}
"""The function behind each built-in `trainer.loss.type`; other packages name theirs in their config class."""


def make_loss(config: BaseLossConfig) -> Loss:
    """The configured `rl` loss. Raises `ValueError` when it cannot be imported."""
    if isinstance(config, CustomLossConfig):
        return partial(custom_loss, function=load_loss(config), kwargs=config.kwargs)
    return partial(function_of(type(config)), config=config)


def function_of(config: type[BaseLossConfig]) -> Callable[..., LossOutputs]:
    """The function that a config class is for. Raises `ValueError` where a package names none."""
    if (built_in := LOSS_FUNCTIONS.get(str(tag_of(config)))) is not None:
        return built_in
    found = LOSS.implementation(config)
    if not callable(found):
        raise ValueError(
            f"{config.__name__}.loss_function = {config.loss_function!r} is {found!r}, which is no function; name one "
            f"that takes (inputs: LossInputs, config: {config.__name__}) and returns LossOutputs"
        )
    return found
