"""One module a loss. `ipo` is configurable; `ce` and `ref_kl` are fixed components."""

from functools import partial

from braidrl.configs.loss import LossConfig
from braidrl.trainer.rl.loss import Loss
from braidrl.trainer.rl.losses.ipo import ipo_loss

LOSSES = {"ipo": ipo_loss}
"""The `rl` losses by the `type` of their config."""


def make_loss(config: LossConfig) -> Loss:
    """The configured `rl` loss."""
    return partial(LOSSES[config.type], config=config)
