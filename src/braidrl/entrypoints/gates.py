"""`braid gates [TYPE]`: what `curriculum.gates.NAME.type` may be, in this installation; of one type, all there is to
know."""

from braidrl.configs.curriculum.gates import BaseGateConfig
from braidrl.configs.plugins import GATES
from braidrl.entrypoints.catalogue import Catalogue


def main(args: list[str]) -> int:
    catalogue = Catalogue(GATES, "curriculum.gates.NAME.", frozenset({"type"}), facts, implementation)
    return catalogue.main("braid gates", __doc__ or "", args)


def facts(config: type[BaseGateConfig]) -> dict[str, str]:
    """What is told of a gate beside its parameters."""
    return {}


def implementation(config: type[BaseGateConfig]) -> object:
    from braidrl.orchestrator.train.curriculum import gate_class

    return gate_class(config)
