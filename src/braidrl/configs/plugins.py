"""Algorithms of other packages: found by their entry points, validated as the built-in ones are.

An entry point of the group `braidrl.algorithms` has the algorithm's `type` for its name and the algorithm's config
class for its value. That class names the algorithm class by import path (`algorithm_class`), so that reading a
configuration imports no algorithm.
"""

import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Annotated, TypeAlias, get_args

from pydantic import Field

from braidrl.configs.algorithm import AlgorithmConfig, BaseAlgorithmConfig
from braidrl.configs.errors import ConfigError
from braidrl.configs.faults import tag_of

GROUP = "braidrl.algorithms"
BUILT_IN = "built in"


@dataclass(frozen=True)
class InstalledAlgorithm:
    """An algorithm that a configuration may name."""

    name: str
    """Its `type`."""
    config: type[BaseAlgorithmConfig]
    origin: str
    """`built in`, or the package that brings it, with its version."""


def find_algorithms() -> dict[str, InstalledAlgorithm]:
    """Every algorithm by its `type`: the built-in ones, then those of other packages by name.

    Raises `ConfigError` where two have the same `type`, or an entry point leads to no config class.
    """
    found = {algorithm.name: algorithm for algorithm in _built_in()}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        if (other := found.get(entry.name)) is not None:
            owner = "braidrl" if other.origin == BUILT_IN else other.origin
            raise ConfigError(
                "algo.type",
                f"{entry.name!r} names an algorithm of {owner} and one of {origin}; uninstall one package, or rename "
                "its algorithm",
            )
        found[entry.name] = InstalledAlgorithm(entry.name, _config_class(entry, origin), origin)
    return found


def _built_in() -> Iterator[InstalledAlgorithm]:
    for config in get_args(get_args(AlgorithmConfig)[0]):
        yield InstalledAlgorithm(str(tag_of(config)), config, BUILT_IN)


def _config_class(entry: EntryPoint, origin: str) -> type[BaseAlgorithmConfig]:
    def fault(seen: str, remedy: str) -> ConfigError:
        return ConfigError(
            "algo.type", f"algorithm {entry.name!r} of {origin}: {entry.value} {seen}; {remedy}"
        )

    try:
        config = entry.load()
    except Exception as error:  # whatever the package does when it is imported
        seen = f"cannot be imported ({type(error).__name__}: {error})"
        raise fault(seen, "repair or uninstall the package") from error
    if not (isinstance(config, type) and issubclass(config, BaseAlgorithmConfig)):
        raise fault("is no algorithm config", "subclass braidrl.configs.algorithm.BaseAlgorithmConfig")
    if tag_of(config) != entry.name:
        raise fault(
            f"has the type {tag_of(config)!r}", f'declare type: Literal["{entry.name}"] = "{entry.name}"'
        )
    if ":" not in config.algorithm_class:
        raise fault("names no algorithm", "set its class variable algorithm_class to `package.module:Class`")
    return config


ALGORITHMS = find_algorithms()
"""Every algorithm of this installation by its `type`."""

if TYPE_CHECKING:
    InstalledAlgorithmConfig: TypeAlias = AlgorithmConfig
else:
    InstalledAlgorithmConfig = Annotated[
        functools.reduce(operator.or_, [algorithm.config for algorithm in ALGORITHMS.values()]),
        Field(discriminator="type"),
    ]
"""The config of every algorithm of this installation, told apart by `type`."""
