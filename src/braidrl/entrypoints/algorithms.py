"""`braid algorithms [TYPE]`: what `algo.type` may be, in this installation; of one type, all there is to know."""

import argparse
import inspect
import textwrap
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from braidrl.configs.algorithm import BaseAlgorithmConfig
from braidrl.configs.errors import ConfigError
from braidrl.configs.faults import models_in
from braidrl.configs.plugins import ALGORITHMS, InstalledAlgorithm
from braidrl.configs.reference import WIDTH, key_lines, keys_of

COMMON = frozenset({"type", "sampling"})
"""Keys that every algorithm has."""
INDENT = " " * 4


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="braid algorithms", description=__doc__)
    parser.add_argument("type", nargs="?", help="one algorithm: also its formula, and what each key means")
    name = parser.parse_args(args).type
    if name is None:
        print("\n\n".join("\n".join(summary(algorithm)) for algorithm in ALGORITHMS.values()))
        return 0
    if name not in ALGORITHMS:
        nearest = get_close_matches(name, ALGORITHMS, n=1)
        raise ConfigError(
            "TYPE", f"unknown type {name!r}; one of {', '.join(ALGORITHMS)}", nearest[0] if nearest else None
        )
    print("\n".join([*summary(ALGORITHMS[name]), "", *details(ALGORITHMS[name].config)]))
    return 0


def summary(algorithm: InstalledAlgorithm) -> Iterator[str]:
    """A few lines: what it is, whose, and its parameters with their defaults."""
    config = algorithm.config
    yield algorithm.name
    yield from wrapped(" ".join((config.__doc__ or "").split("\n\n")[0].split()))
    facts = {
        "source": config.paper or "not given",
        "comes from": algorithm.origin,
        "trains": f"sampled tokens, by the {config.action_loss_type} loss",
        "waits for": waits_for(config),
        "needs": "; ".join(needs(config)) or "nothing else",
        "parameters": ", ".join(parameters(config)) or "none",
    }
    for name, fact in facts.items():
        yield from wrapped(f"{name + ':':<12}{fact}", INDENT + " " * 12)


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


def parameters(config: type[BaseAlgorithmConfig]) -> Iterator[str]:
    """`key = default`, or `key (required)`, of everything that the algorithm has to itself."""
    for name, field in config.model_fields.items():
        if name not in COMMON:
            yield from _defaults(name, field)


def details(config: type[BaseAlgorithmConfig]) -> Iterator[str]:
    """What its class says of an algorithm, and what each of its keys means."""
    from braidrl.orchestrator.train.algo import class_of

    yield from (inspect.getdoc(class_of(config)) or "").splitlines()
    yield ""
    for key in keys_of(config, prefix="algo.", hidden=frozenset(f"algo.{name}" for name in COMMON)):
        yield from key_lines(key)


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
