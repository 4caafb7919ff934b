"""Algorithms, losses, samplers and gates of other packages: found by their entry points, validated as the built-in ones
are.

An entry point of the group `braidrl.algorithms`, `.losses`, `.samplers` or `.gates` has a `type` for its name and that
type's config class for its value. The class names the implementation by import path (`algorithm_class`,
`loss_function`, ...), so that reading a configuration imports none of them.
"""

import functools
import operator
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeAlias, TypeVar, get_args

from pydantic import Field

from braidrl.configs.algorithm import AlgorithmConfig, BaseAlgorithmConfig
from braidrl.configs.core.base import BaseConfig
from braidrl.configs.core.errors import ConfigError
from braidrl.configs.core.faults import tag_of
from braidrl.configs.curriculum.gates import BaseGateConfig, GateConfig
from braidrl.configs.curriculum.samplers import BaseSamplerConfig, SamplerConfig
from braidrl.configs.loss import BaseLossConfig, LossConfig

BUILT_IN = "built in"

ConfigT = TypeVar("ConfigT", bound=BaseConfig)


@dataclass(frozen=True)
class Installed(Generic[ConfigT]):
    """What a configuration may name by its `type`."""

    name: str
    """Its `type`."""
    config: type[ConfigT]
    origin: str
    """`built in`, or the package that brings it, with its version."""

    @property
    def owner(self) -> str:
        """The package that it belongs to."""
        return "braidrl" if self.origin == BUILT_IN else self.origin


@dataclass(frozen=True)
class Kind(Generic[ConfigT]):
    """A kind of thing that packages bring."""

    group: str
    """The group of its entry points."""
    noun: str
    article: str
    key: str
    """Where a configuration names one."""
    home: str
    """Module that exports `base`."""
    base: type[ConfigT]
    """What the config class of one subclasses."""
    union: Any
    """The config classes of the built-in ones, told apart by `type`."""
    target: str
    """Class variable that names the implementation ..."""
    form: str
    """... and how it does so."""

    def find(self) -> dict[str, Installed[ConfigT]]:
        """All of this kind by `type`: the built-in ones, then those of other packages by name.

        Raises `ConfigError` where two have the same `type`, or an entry point leads to no config class.
        """
        found = {thing.name: thing for thing in self._built_in()}
        for entry in sorted(entry_points(group=self.group), key=lambda entry: entry.name):
            origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
            if (other := found.get(entry.name)) is not None:
                raise ConfigError(
                    self.key,
                    f"{entry.name!r} names {self.article} {self.noun} of {other.owner} and one of {origin}; uninstall "
                    f"one package, or rename its {self.noun}",
                )
            found[entry.name] = Installed(entry.name, self._config_class(entry, origin), origin)
        return found

    def implementation(self, config: type[ConfigT]) -> Any:
        """What a package's config class is for. Raises `ValueError` where that cannot be imported."""
        path = getattr(config, self.target)
        try:
            return pkgutil.resolve_name(path)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(
                f"{config.__name__}.{self.target} = {path!r} cannot be imported: {error}; give `{self.form}` of the "
                f"{self.noun}"
            ) from error

    def _built_in(self) -> Iterator[Installed[ConfigT]]:
        for config in get_args(get_args(self.union)[0]):
            yield Installed(str(tag_of(config)), config, BUILT_IN)

    def _config_class(self, entry: EntryPoint, origin: str) -> type[ConfigT]:
        def fault(seen: str, remedy: str) -> ConfigError:
            return ConfigError(
                self.key, f"{self.noun} {entry.name!r} of {origin}: {entry.value} {seen}; {remedy}"
            )

        try:
            config = entry.load()
        except Exception as error:  # whatever the package does when it is imported
            seen = f"cannot be imported ({type(error).__name__}: {error})"
            raise fault(seen, "repair or uninstall the package") from error
        if not (isinstance(config, type) and issubclass(config, self.base)):
            raise fault(f"is no {self.noun} config", f"subclass {self.home}.{self.base.__name__}")
        if tag_of(config) != entry.name:
            declaration = f'type: Literal["{entry.name}"] = "{entry.name}"'
            raise fault(f"has the type {tag_of(config)!r}", f"declare {declaration}")
        if ":" not in getattr(config, self.target):
            raise fault(f"names no {self.noun}", f"set its class variable {self.target} to `{self.form}`")
        return config


ALGORITHM = Kind(
    group="braidrl.algorithms",
    noun="algorithm",
    article="an",
    key="algo.type",
    home="braidrl.configs.algorithm",
    base=BaseAlgorithmConfig,
    union=AlgorithmConfig,
    target="algorithm_class",
    form="package.module:Class",
)
LOSS = Kind(
    group="braidrl.losses",
    noun="loss",
    article="a",
    key="loss.type",
    home="braidrl.configs.loss",
    base=BaseLossConfig,
    union=LossConfig,
    target="loss_function",
    form="package.module:function",
)
SAMPLER = Kind(
    group="braidrl.samplers",
    noun="sampler",
    article="a",
    key="curriculum.sampler.type",
    home="braidrl.configs.curriculum.samplers",
    base=BaseSamplerConfig,
    union=SamplerConfig,
    target="sampler_class",
    form="package.module:Class",
)
GATE = Kind(
    group="braidrl.gates",
    noun="gate",
    article="a",
    key="curriculum.gates.NAME.type",
    home="braidrl.configs.curriculum.gates",
    base=BaseGateConfig,
    union=GateConfig,
    target="gate_class",
    form="package.module:Class",
)

ALGORITHMS = ALGORITHM.find()
"""Every algorithm of this installation by its `type`."""
LOSSES = LOSS.find()
"""Every rl loss of this installation by its `type`."""
SAMPLERS = SAMPLER.find()
"""Every task sampler of this installation by its `type`."""
GATES = GATE.find()
"""Every admission gate of this installation by its `type`."""

if TYPE_CHECKING:
    InstalledAlgorithmConfig: TypeAlias = AlgorithmConfig
    InstalledLossConfig: TypeAlias = LossConfig
    InstalledSamplerConfig: TypeAlias = SamplerConfig
    InstalledGateConfig: TypeAlias = GateConfig
else:

    def _union(found):
        return Annotated[
            functools.reduce(operator.or_, [thing.config for thing in found.values()]),
            Field(discriminator="type"),
        ]

    InstalledAlgorithmConfig = _union(ALGORITHMS)
    """The config of every algorithm of this installation, told apart by `type`."""
    InstalledLossConfig = _union(LOSSES)
    """The config of every rl loss of this installation, told apart by `type`."""
    InstalledSamplerConfig = _union(SAMPLERS)
    """The config of every task sampler of this installation, told apart by `type`."""
    InstalledGateConfig = _union(GATES)
    """The config of every admission gate of this installation, told apart by `type`."""
