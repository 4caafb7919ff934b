"""`braid algorithms`, `losses`, `samplers` and `gates`: list the installed types, and describe one of them."""

import argparse
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Generic

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from braidrl.configs.algorithm import BaseAlgorithmConfig
from braidrl.configs.core.errors import ConfigError
from braidrl.configs.core.faults import models_in
from braidrl.configs.core.reference import WIDTH, key_lines, keys_of
from braidrl.configs.curriculum.gates import BaseGateConfig
from braidrl.configs.curriculum.samplers import BaseSamplerConfig
from braidrl.configs.loss import BaseLossConfig
from braidrl.configs.plugins import ALGORITHMS, GATES, LOSSES, SAMPLERS, ConfigT, Installed

INDENT = " " * 4
LABEL = 12


@dataclass(frozen=True)
class Catalogue(Generic[ConfigT]):
    """Installed types of one kind, and how they are described."""

    types: Mapping[str, Installed[ConfigT]]
    """Installed types by `type`."""
    prefix: str
    """Prefix of their config keys, such as `algo.`."""
    common: frozenset[str]
    """Keys that all types have. They are not listed as parameters."""
    facts: Callable[[type[ConfigT]], Mapping[str, str]]
    """Returns the facts of a type that are specific to its kind, by label."""
    implementation: Callable[[type[ConfigT]], object]
    """Returns the class or function that implements a config class. Its docstring is printed."""

    def main(self, prog: str, description: str, args: list[str]) -> int:
        """List all types, or describe the one given in `args`."""
        parser = argparse.ArgumentParser(prog=prog, description=description)
        parser.add_argument("type", nargs="?", help="type to describe, with its formula and every key")
        name = parser.parse_args(args).type
        if name is None:
            print("\n\n".join("\n".join(self.summary(installed)) for installed in self.types.values()))
            return 0
        if name not in self.types:
            nearest = get_close_matches(name, self.types, n=1)
            raise ConfigError(
                "TYPE",
                f"unknown type {name!r}; one of {', '.join(self.types)}",
                nearest[0] if nearest else None,
            )
        print("\n".join([*self.summary(self.types[name]), "", *self.details(self.types[name].config)]))
        return 0

    def summary(self, installed: Installed[ConfigT]) -> Iterator[str]:
        """Yield the lines of a list entry: description, source, package, and parameters with their defaults."""
        config = installed.config
        yield installed.name
        yield from wrapped(" ".join((config.__doc__ or "").split("\n\n")[0].split()))
        facts = {
            "source": getattr(config, "paper", "") or "not given",
            "comes from": installed.origin,
            **self.facts(config),
            "parameters": ", ".join(self._parameters(config)) or "none",
        }
        for name, fact in facts.items():
            yield from wrapped(f"{name + ':':<{LABEL}}{fact}", INDENT + " " * LABEL)

    def details(self, config: type[ConfigT]) -> Iterator[str]:
        """Yield the docstring of the implementation and the description of each key."""
        yield from (inspect.getdoc(self.implementation(config)) or "").splitlines()
        yield ""
        hidden = frozenset(f"{self.prefix}{name}" for name in self.common)
        for key in keys_of(config, prefix=self.prefix, hidden=hidden):
            yield from key_lines(key)

    def _parameters(self, config: type[ConfigT]) -> Iterator[str]:
        """Yield `key = default` or `key (required)` for every key that is not in `common`."""
        for name, field in config.model_fields.items():
            if name not in self.common:
                yield from _defaults(name, field)


def wrapped(text: str, further: str = INDENT) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=INDENT, subsequent_indent=further, break_long_words=False
    )


def _defaults(name: str, field: FieldInfo) -> Iterator[str]:
    if field.is_required():
        blocks = list(models_in(field.annotation))
        keys = [key for block in blocks for key in keys_of(block, f"{name}.") if key.default is None]
        yield from (f"{path} (required)" for path in ([key.path for key in keys] or [name]))
        return
    default = field.get_default(call_default_factory=True, validated_data={})
    for key, value in _leaves(name, default):
        yield f"{key} = {shorten(str(value))}"


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of the leaves of a default value."""
    if not isinstance(value, BaseModel):
        yield name, "none" if value is None else value
        return
    for key in type(value).model_fields:
        if getattr(value, key) is not None:
            yield from _leaves(f"{name}.{key}", getattr(value, key))


def shorten(text: str, width: int = 40) -> str:
    """Return `text` on one line, truncated to `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."


def algorithms(args: list[str]) -> int:
    """`braid algorithms [TYPE]`: list the installed values of `algo.type`, or describe one in full."""
    catalogue = Catalogue(
        ALGORITHMS, "algo.", frozenset({"type", "sampling"}), algorithm_facts, algorithm_class
    )
    return catalogue.main("braid algorithms", algorithms.__doc__ or "", args)


def algorithm_facts(config: type[BaseAlgorithmConfig]) -> dict[str, str]:
    """Return the trained tokens, barrier and requirements of an algorithm."""
    return {
        "trains": f"sampled tokens, by the {config.action_loss_type} loss",
        "waits for": waits_for(config),
        "needs": "; ".join(algorithm_needs(config)) or "nothing else",
    }


def algorithm_class(config: type[BaseAlgorithmConfig]) -> object:
    from braidrl.orchestrator.train.algo import class_of

    return class_of(config)


def waits_for(config: type[BaseAlgorithmConfig]) -> str:
    """Return the barrier of an algorithm with default settings, and the widest one if it differs."""
    usual = config.model_construct().waits_for
    return f"the {usual}" + (
        f", or the {config.barrier} with some settings" if usual != config.barrier else ""
    )


def algorithm_needs(config: type[BaseAlgorithmConfig]) -> Iterator[str]:
    """Yield the requirements of an algorithm on the run."""
    if config.needs_group:
        yield "siblings (group_size of 2 or more)"
    if config.check_agents is not BaseAlgorithmConfig.check_agents:
        yield "an environment with matching agents"
    if config.needs_model:
        yield "a served model"
    try:
        config()  # validators of the default settings report what else is required
    except ValidationError as error:
        for fault in error.errors():
            if fault["type"] == "value_error":
                yield fault["msg"].removeprefix("Value error, ").rpartition(": ")[2]


def losses(args: list[str]) -> int:
    """`braid losses [TYPE]`: list the installed values of `trainer.loss.type`, or describe one in full."""
    catalogue = Catalogue(LOSSES, "trainer.loss.", frozenset({"type"}), loss_facts, loss_function)
    return catalogue.main("braid losses", losses.__doc__ or "", args)


def loss_facts(config: type[BaseLossConfig]) -> dict[str, str]:
    """Return the inputs of a loss other than the current log-probs and those of the sampler."""
    return {"needs": "; ".join(loss_needs(config)) or "nothing else"}


def loss_function(config: type[BaseLossConfig]) -> object:
    from braidrl.trainer.rl.losses import function_of

    return function_of(config)


def loss_needs(config: type[BaseLossConfig]) -> Iterator[str]:
    """Yield the additional inputs of a loss."""
    if config.compares_with_old:
        yield "log-probs of the trainer before the step (old)"
    if config.head_size is not BaseLossConfig.head_size:
        yield "with some settings, the most likely tokens of the sampler"


def samplers(args: list[str]) -> int:
    """`braid samplers [TYPE]`: list the installed values of `curriculum.sampler.type`, or describe one in full."""
    catalogue = Catalogue(SAMPLERS, "curriculum.sampler.", frozenset({"type"}), sampler_facts, sampler_class)
    return catalogue.main("braid samplers", samplers.__doc__ or "", args)


def sampler_facts(config: type[BaseSamplerConfig]) -> dict[str, str]:
    """Return the tasksets that a sampler supports."""
    return {"tasksets": "finite" if config.finite_only else "finite and infinite"}


def sampler_class(config: type[BaseSamplerConfig]) -> object:
    from braidrl.orchestrator.train.curriculum import sampler_class

    return sampler_class(config)


def gates(args: list[str]) -> int:
    """`braid gates [TYPE]`: list the installed values of `curriculum.gates.NAME.type`, or describe one in full."""
    catalogue = Catalogue(GATES, "curriculum.gates.NAME.", frozenset({"type"}), gate_facts, gate_class)
    return catalogue.main("braid gates", gates.__doc__ or "", args)


def gate_facts(config: type[BaseGateConfig]) -> dict[str, str]:
    """Return no facts: a gate is described by its parameters alone."""
    return {}


def gate_class(config: type[BaseGateConfig]) -> object:
    from braidrl.orchestrator.train.curriculum import gate_class

    return gate_class(config)
