"""Algorithms, losses, samplers and gates of other packages, found by entry points and validated like the built-in ones.

The entry point groups are `braidrl.algorithms`, `.losses`, `.samplers` and `.gates`. The name of an entry point is the
`type`, its value the config class of that type. The class refers to the implementation by import path
(`algorithm_class`, `loss_function`, ...), so that loading a configuration does not import implementations.
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
    """An installed component that a configuration can select by `type`."""

    name: str
    """Value of `type`."""
    config: type[ConfigT]
    origin: str
    """`built in`, or the name and version of the package that provides it."""

    @property
    def owner(self) -> str:
        """Name of the package that provides it."""
        return "braidrl" if self.origin == BUILT_IN else self.origin


@dataclass(frozen=True)
class Kind(Generic[ConfigT]):
    """A kind of component that packages can provide."""

    group: str
    """Group of the entry points."""
    noun: str
    article: str
    key: str
    """Config key that selects a component, for error messages."""
    home: str
    """Module that exports `base`, for error messages."""
    base: type[ConfigT]
    """Base class of the config classes."""
    union: Any
    """Union of the config classes of the built-in components, discriminated by `type`."""
    target: str
    """Class variable of a config class that contains the import path of the implementation."""
    form: str
    """Format of that import path."""

    def find(self) -> dict[str, Installed[ConfigT]]:
        """Return all installed components by `type`: the built-in ones, then those of other packages by name.

        Raises `ConfigError` if two components have the same `type` or an entry point is not a valid config class.
        """
        found = {component.name: component for component in self._built_in()}
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
        """Return the implementation of a package's config class. Raises `ValueError` if it cannot be imported."""
        path = getattr(config, self.target)
        try:
            return pkgutil.resolve_name(path)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(
                f"{config.__name__}.{self.target} = {path!r} cannot be imported: {error}; set it to the import path of "
                f"the {self.noun}, `{self.form}`"
            ) from error

    def _built_in(self) -> Iterator[Installed[ConfigT]]:
        for config in get_args(get_args(self.union)[0]):  # the members of Annotated[A | B | ..., Field(...)]
            yield Installed(str(tag_of(config)), config, BUILT_IN)

    def _config_class(self, entry: EntryPoint, origin: str) -> type[ConfigT]:
        def fault(seen: str, remedy: str) -> ConfigError:
            return ConfigError(
                self.key, f"{self.noun} {entry.name!r} of {origin}: {entry.value} {seen}; {remedy}"
            )

        try:
            config = entry.load()
        except Exception as error:  # importing a package can raise anything
            seen = f"cannot be imported ({type(error).__name__}: {error})"
            raise fault(seen, "fix or uninstall the package") from error
        if not (isinstance(config, type) and issubclass(config, self.base)):
            raise fault(
                f"is not {self.article} {self.noun} config", f"subclass {self.home}.{self.base.__name__}"
            )
        if tag_of(config) != entry.name:
            declaration = f'type: Literal["{entry.name}"] = "{entry.name}"'
            raise fault(f"has the type {tag_of(config)!r}", f"declare {declaration}")
        if ":" not in getattr(config, self.target):
            raise fault(
                f"does not refer to {self.article} {self.noun}",
                f"set its class variable {self.target} to `{self.form}`",
            )
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
"""Installed algorithms by `type`."""
LOSSES = LOSS.find()
"""Installed rl losses by `type`."""
SAMPLERS = SAMPLER.find()
"""Installed task samplers by `type`."""
GATES = GATE.find()
"""Installed admission gates by `type`."""

# type checkers cannot evaluate unions that depend on the installation, so they see the built-in ones
if TYPE_CHECKING:
    InstalledAlgorithmConfig: TypeAlias = AlgorithmConfig
    InstalledLossConfig: TypeAlias = LossConfig
    InstalledSamplerConfig: TypeAlias = SamplerConfig
    InstalledGateConfig: TypeAlias = GateConfig
else:

    def _union(found):
        return Annotated[
            functools.reduce(operator.or_, [component.config for component in found.values()]),
            Field(discriminator="type"),
        ]

    InstalledAlgorithmConfig = _union(ALGORITHMS)
    """Union of the configs of all installed algorithms, discriminated by `type`."""
    InstalledLossConfig = _union(LOSSES)
    """Union of the configs of all installed rl losses, discriminated by `type`."""
    InstalledSamplerConfig = _union(SAMPLERS)
    """Union of the configs of all installed task samplers, discriminated by `type`."""
    InstalledGateConfig = _union(GATES)
    """Union of the configs of all installed admission gates, discriminated by `type`."""
