"""What `braid algorithms`, `losses`, `samplers` and `gates` share: a list of what a `type` may be, and all there is to
know of one."""

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
    """What a configuration may name at one place, and how it is described."""

    known: Mapping[str, Installed[ConfigT]]
    """By `type`."""
    prefix: str
    """Of its keys: `algo.`."""
    common: frozenset[str]
    """Keys that all of them have."""
    facts: Callable[[type[ConfigT]], Mapping[str, str]]
    """What is told of one beside its source, its package and its parameters."""
    implementation: Callable[[type[ConfigT]], object]
    """What its config class is for; its docstring explains it."""

    def main(self, prog: str, description: str, args: list[str]) -> int:
        """List all, or explain the one that `args` names."""
        parser = argparse.ArgumentParser(prog=prog, description=description)
        parser.add_argument("type", nargs="?", help="one of them: also its formula, and what each key means")
        name = parser.parse_args(args).type
        if name is None:
            print("\n\n".join("\n".join(self.summary(thing)) for thing in self.known.values()))
            return 0
        if name not in self.known:
            nearest = get_close_matches(name, self.known, n=1)
            raise ConfigError(
                "TYPE",
                f"unknown type {name!r}; one of {', '.join(self.known)}",
                nearest[0] if nearest else None,
            )
        print("\n".join([*self.summary(self.known[name]), "", *self.details(self.known[name].config)]))
        return 0

    def summary(self, thing: Installed[ConfigT]) -> Iterator[str]:
        """A few lines: what it is, whose, and its parameters with their defaults."""
        config = thing.config
        yield thing.name
        yield from wrapped(" ".join((config.__doc__ or "").split("\n\n")[0].split()))
        facts = {
            "source": getattr(config, "paper", "") or "not given",
            "comes from": thing.origin,
            **self.facts(config),
            "parameters": ", ".join(self._parameters(config)) or "none",
        }
        for name, fact in facts.items():
            yield from wrapped(f"{name + ':':<{LABEL}}{fact}", INDENT + " " * LABEL)

    def details(self, config: type[ConfigT]) -> Iterator[str]:
        """What the implementation says of itself, and what each key means."""
        yield from (inspect.getdoc(self.implementation(config)) or "").splitlines()
        yield ""
        hidden = frozenset(f"{self.prefix}{name}" for name in self.common)
        for key in keys_of(config, prefix=self.prefix, hidden=hidden):
            yield from key_lines(key)

    def _parameters(self, config: type[ConfigT]) -> Iterator[str]:
        """`key = default`, or `key (required)`, of everything that it has to itself."""
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
    """(dotted key, value) of what a default sets."""
    if not isinstance(value, BaseModel):
        yield name, "none" if value is None else value
        return
    for key in type(value).model_fields:
        if getattr(value, key) is not None:
            yield from _leaves(f"{name}.{key}", getattr(value, key))


def shorten(text: str, width: int = 40) -> str:
    """`text` on one line, cut to `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."


def algorithms(args: list[str]) -> int:
    """`braid algorithms [TYPE]`: what `algo.type` may be, in this installation; of one type, all there is to know."""
    catalogue = Catalogue(
        ALGORITHMS, "algo.", frozenset({"type", "sampling"}), algorithm_facts, algorithm_class
    )
    return catalogue.main("braid algorithms", algorithms.__doc__ or "", args)


def algorithm_facts(config: type[BaseAlgorithmConfig]) -> dict[str, str]:
    """What an algorithm trains, waits for and needs."""
    return {
        "trains": f"sampled tokens, by the {config.action_loss_type} loss",
        "waits for": waits_for(config),
        "needs": "; ".join(algorithm_needs(config)) or "nothing else",
    }


def algorithm_class(config: type[BaseAlgorithmConfig]) -> object:
    from braidrl.orchestrator.train.algo import class_of

    return class_of(config)


def waits_for(config: type[BaseAlgorithmConfig]) -> str:
    """What its credit waits for by default, and at most."""
    usual = config.model_construct().waits_for
    return f"the {usual}" + (
        f", or the {config.barrier} with some settings" if usual != config.barrier else ""
    )


def algorithm_needs(config: type[BaseAlgorithmConfig]) -> Iterator[str]:
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


def losses(args: list[str]) -> int:
    """`braid losses [TYPE]`: what `trainer.loss.type` may be, in this installation; of one type, all there is to
    know."""
    catalogue = Catalogue(LOSSES, "trainer.loss.", frozenset({"type"}), loss_facts, loss_function)
    return catalogue.main("braid losses", losses.__doc__ or "", args)


def loss_facts(config: type[BaseLossConfig]) -> dict[str, str]:
    """What a loss is given beside the current log-probs and the sampler's."""
    return {"needs": "; ".join(loss_needs(config)) or "nothing else"}


def loss_function(config: type[BaseLossConfig]) -> object:
    from braidrl.trainer.rl.losses import function_of

    return function_of(config)


def loss_needs(config: type[BaseLossConfig]) -> Iterator[str]:
    """What must be known of a batch for a loss."""
    if config.compares_with_old:
        yield "the trainer's log-probs before the step (old)"
    if config.head_size is not BaseLossConfig.head_size:
        yield "with some settings, the sampler's most likely tokens"


def samplers(args: list[str]) -> int:
    """`braid samplers [TYPE]`: what `curriculum.sampler.type` may be, in this installation; of one type, all there
    is to know."""
    catalogue = Catalogue(SAMPLERS, "curriculum.sampler.", frozenset({"type"}), sampler_facts, sampler_class)
    return catalogue.main("braid samplers", samplers.__doc__ or "", args)


def sampler_facts(config: type[BaseSamplerConfig]) -> dict[str, str]:
    """What a sampler chooses from."""
    return {"tasksets": "finite" if config.finite_only else "finite and infinite"}


def sampler_class(config: type[BaseSamplerConfig]) -> object:
    from braidrl.orchestrator.train.curriculum import sampler_class

    return sampler_class(config)


def gates(args: list[str]) -> int:
    """`braid gates [TYPE]`: what `curriculum.gates.NAME.type` may be, in this installation; of one type, all there
    is to know."""
    catalogue = Catalogue(GATES, "curriculum.gates.NAME.", frozenset({"type"}), gate_facts, gate_class)
    return catalogue.main("braid gates", gates.__doc__ or "", args)


def gate_facts(config: type[BaseGateConfig]) -> dict[str, str]:
    """What is told of a gate beside its parameters."""
    return {}


def gate_class(config: type[BaseGateConfig]) -> object:
    from braidrl.orchestrator.train.curriculum import gate_class

    return gate_class(config)
