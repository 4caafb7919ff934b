"""Algorithms: one module each. An algorithm annotates finished episodes; everything downstream is blind to
its name."""

from typing import Any

from braidrl.configs.algorithm import BaseAlgorithmConfig
from braidrl.orchestrator.train.algo.base import Algorithm
from braidrl.orchestrator.train.algo.grpo import GRPOAlgorithm

__all__ = ["ALGORITHM_CLASSES", "Algorithm", "make_algorithm"]

ALGORITHM_CLASSES: dict[str, type[Algorithm]] = {
    "grpo": GRPOAlgorithm,
}
"""The class behind each `algo.type`."""


def make_algorithm(config: BaseAlgorithmConfig, clients: Any = None) -> Algorithm:
    """Build the algorithm of one environment. `clients` reach the live policy; they stay the host's to
    close."""
    return ALGORITHM_CLASSES[config.type](config, clients)
