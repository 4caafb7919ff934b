"""`braid algorithms [TYPE]`: what `algo.type` may be, in this installation; of one type, all there is to know."""

from collections.abc import Iterator

from pydantic import ValidationError

from braidrl.configs.algorithm import BaseAlgorithmConfig
from braidrl.configs.plugins import ALGORITHMS
from braidrl.entrypoints.catalogue import Catalogue


def main(args: list[str]) -> int:
    catalogue = Catalogue(ALGORITHMS, "algo.", frozenset({"type", "sampling"}), facts, implementation)
    return catalogue.main("braid algorithms", __doc__ or "", args)


def facts(config: type[BaseAlgorithmConfig]) -> dict[str, str]:
    """What an algorithm trains, waits for and needs."""
    return {
        "trains": f"sampled tokens, by the {config.action_loss_type} loss",
        "waits for": waits_for(config),
        "needs": "; ".join(needs(config)) or "nothing else",
    }


def implementation(config: type[BaseAlgorithmConfig]) -> object:
    from braidrl.orchestrator.train.algo import class_of

    return class_of(config)


def waits_for(config: type[BaseAlgorithmConfig]) -> str:
    """What its credit waits for by default, and at most."""
    usual = config.model_construct().waits_for
    return f"the {usual}" + (
        f", or the {config.barrier} with some settings" if usual != config.barrier else ""
    )


def needs(config: type[BaseAlgorithmConfig]) -> Iterator[str]:
    """What a run must bring for an algorithm."""
    if config.needs_group:
        yield "siblings (group_size of 2 or more)"
    if config.check_agents is not BaseAlgorithmConfig.check_agents:
        yield "an environment with agents that suit it"
    if config.needs_model:
        yield "a served model"
    try:
        config()
    except ValidationError as error:
        for fault in error.errors():
            if fault["type"] == "value_error":
                yield fault["msg"].removeprefix("Value error, ").rpartition(": ")[2]
