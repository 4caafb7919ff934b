"""`braid losses [TYPE]`: what `trainer.loss.type` may be, in this installation; of one type, all there is to know."""

from collections.abc import Iterator

from braidrl.configs.loss import BaseLossConfig
from braidrl.configs.plugins import LOSSES
from braidrl.entrypoints.catalogue import Catalogue


def main(args: list[str]) -> int:
    catalogue = Catalogue(LOSSES, "trainer.loss.", frozenset({"type"}), facts, implementation)
    return catalogue.main("braid losses", __doc__ or "", args)


def facts(config: type[BaseLossConfig]) -> dict[str, str]:
    """What a loss is given beside the current log-probs and the sampler's."""
    return {"needs": "; ".join(needs(config)) or "nothing else"}


def implementation(config: type[BaseLossConfig]) -> object:
    from braidrl.trainer.rl.losses import function_of

    return function_of(config)


def needs(config: type[BaseLossConfig]) -> Iterator[str]:
    """What must be known of a batch for a loss."""
    if config.compares_with_old:
        yield "the trainer's log-probs before the step (old)"
    if config.head_size is not BaseLossConfig.head_size:
        yield "with some settings, the sampler's most likely tokens"
