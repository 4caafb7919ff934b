"""Algorithms, one module each. An algorithm annotates finished episodes. Later stages do not depend on its type.

Imports `orchestrator.train.samples`, `utils` and `configs`.
Start with `base.py` and `routing.py`, then `grpo.py`.
"""

from typing import Any

from braidrl.configs.algorithm import BaseAlgorithmConfig
from braidrl.configs.core.faults import tag_of
from braidrl.configs.plugins import ALGORITHM
from braidrl.orchestrator.train.algo.base import Algorithm
from braidrl.orchestrator.train.algo.echo import EchoAlgorithm
from braidrl.orchestrator.train.algo.grpo import GRPOAlgorithm
from braidrl.orchestrator.train.algo.hierarchical_grpo import HierarchicalGRPOAlgorithm
from braidrl.orchestrator.train.algo.max_rl import MaxRLAlgorithm
from braidrl.orchestrator.train.algo.opd import OPDAlgorithm
from braidrl.orchestrator.train.algo.opsd import OPSDAlgorithm
from braidrl.orchestrator.train.algo.rae import RAEAlgorithm
from braidrl.orchestrator.train.algo.sft import SFTDistillAlgorithm

__all__ = ["ALGORITHM_CLASSES", "Algorithm", "class_of", "make_algorithm"]

ALGORITHM_CLASSES: dict[str, type[Algorithm]] = {
    "grpo": GRPOAlgorithm,
    "max_rl": MaxRLAlgorithm,
    "rae": RAEAlgorithm,
    "hierarchical_grpo": HierarchicalGRPOAlgorithm,
    "opd": OPDAlgorithm,
    "opsd": OPSDAlgorithm,
    "sft": SFTDistillAlgorithm,
    "echo": EchoAlgorithm,
}
"""Class of each built-in `algo.type`. Config classes of other packages name their own class."""


def make_algorithm(config: BaseAlgorithmConfig, clients: Any = None) -> Algorithm:
    """Build the algorithm of one source.

    Args:
        clients: clients of the live policy (`PolicyClients`). The caller closes them.
    """
    return class_of(type(config))(config, clients)


def class_of(config: type[BaseAlgorithmConfig]) -> type[Algorithm]:
    """Return the algorithm of a config class. Raises `ValueError` if the class does not name one."""
    return ALGORITHM_CLASSES.get(str(tag_of(config))) or _class_of_package(config)


def _class_of_package(config: type[BaseAlgorithmConfig]) -> type[Algorithm]:
    found = ALGORITHM.implementation(config)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ValueError(
            f"{config.__name__}.algorithm_class = {config.algorithm_class!r} is {found!r}, not an Algorithm; "
            "subclass braidrl.orchestrator.train.algo.Algorithm"
        )
    return found
