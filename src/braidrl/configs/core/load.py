"""Loading of a config from the command line: `@ FILE` ..., then dotted flags. Later values override earlier ones."""

import operator
from collections.abc import Collection
from functools import reduce
from typing import TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic_config import ConfigFileError, cli

from braidrl.configs.core.errors import ConfigError, ConfigErrors
from braidrl.configs.core.faults import explain
from braidrl.configs.core.reference import help_text

ConfigT = TypeVar("ConfigT", bound=BaseModel)


def load_config(
    cls: type[ConfigT], args: list[str], prog: str = "braid", hidden: frozenset[str] = frozenset()
) -> ConfigT:
    """Read config files and flags into `cls`. `--help` prints all keys except `hidden` ones and exits.

    Raises `ConfigErrors` if the configuration is invalid.
    """
    if "--help" in args or "-h" in args:
        print(help_text(cls, prog, hidden))
        raise SystemExit(0)
    try:
        return cli(cls, args=args)
    except ConfigFileError as error:
        if isinstance(error.__cause__, ValidationError):
            raise ConfigErrors(list(explain(cls, error.__cause__, args))) from None
        raise ConfigErrors([ConfigError("", error.message)]) from None


def to_toml(config: BaseModel, without: Collection[str] = ()) -> str:
    """Return the resolved config as TOML, without keys that are None and the dotted paths in `without`."""
    data = config.model_dump(mode="json", exclude_none=True)
    for path in without:
        *blocks, key = path.split(".")
        reduce(operator.getitem, blocks, data).pop(key, None)
    return tomli_w.dumps(data)
