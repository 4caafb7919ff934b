"""One module a loss. `ce` and `ref_kl` are fixed components; the others are what `trainer.loss` may be."""

from functools import partial

from braidrl.configs.loss import CustomLossConfig, LossConfig
from braidrl.trainer.rl.loss import Loss
from braidrl.trainer.rl.losses.custom import custom_loss, load_function
from braidrl.trainer.rl.losses.grpo import grpo_loss
from braidrl.trainer.rl.losses.gspo import gspo_loss
from braidrl.trainer.rl.losses.icepop import icepop_loss
from braidrl.trainer.rl.losses.ipo import ipo_loss

LOSSES = {"ipo": ipo_loss, "icepop": icepop_loss, "grpo": grpo_loss, "gspo": gspo_loss}
"""The built-in `rl` losses by the `type` of their config."""


def make_loss(config: LossConfig) -> Loss:
    """The configured `rl` loss. Raises `ValueError` when it cannot be imported."""
    if isinstance(config, CustomLossConfig):
        return partial(custom_loss, function=load_function(config), kwargs=config.kwargs)
    return partial(LOSSES[config.type], config=config)
