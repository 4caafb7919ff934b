"""From the command line to a typed config: `@ FILE` ..., then dotted flags, later ones win."""

import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic_config import ConfigFileError, cli

from braidrl.configs.errors import ConfigError, ConfigErrors
from braidrl.configs.reference import help_text

ConfigT = TypeVar("ConfigT", bound=BaseModel)


def load_config(
    cls: type[ConfigT], args: list[str], prog: str = "braid", hidden: frozenset[str] = frozenset()
) -> ConfigT:
    """Read config files and flags into `cls`. Raises `ConfigErrors`; `--help` prints the keys but `hidden` ones."""
    if "--help" in args or "-h" in args:
        print(help_text(cls, prog, hidden))
        raise SystemExit(0)
    try:
        return cli(cls, args=args)
    except ConfigFileError as error:
        if isinstance(error.__cause__, ValidationError):
            raise ConfigErrors(list(_explain(cls, error.__cause__, args))) from None
        raise ConfigErrors([ConfigError("", error.message)]) from None


def to_toml(config: BaseModel) -> str:
    """The resolved config as TOML; keys that are None are left out."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def _explain(cls: type[BaseModel], error: ValidationError, args: list[str]) -> Iterator[ConfigError]:
    """One error a key. A root key that processes share fails once, not once a process."""
    details = error.errors(include_url=False)
    root_keys = {detail["loc"] for detail in details}
    for detail in details:
        location = detail["loc"]
        if location[1:] in root_keys and len(location) > 1:
            continue
        yield _explain_one(cls, location, detail, args)


def _explain_one(cls: type[BaseModel], location: tuple, detail: Any, args: list[str]) -> ConfigError:
    path = _dotted(location)
    origin = _origin(location, args)
    if detail["type"] == "extra_forbidden":
        owner = _model_at(cls, location[:-1])
        known = list(owner.model_fields) if owner else []
        nearest = get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        suggestion = _dotted((*location[:-1], nearest[0])) if nearest else None
        message = "unknown key" if suggestion else f"unknown key; valid here: {', '.join(known)}"
        return ConfigError(path, message, suggestion, origin)
    if detail["type"] == "missing":
        return ConfigError(path, "is required; set it in the config file or on the command line")
    message = detail["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if location and not isinstance(detail.get("input"), dict | list | BaseModel):
        message += f" (got {detail['input']!r})"
    return ConfigError(path, message, origin=origin)


def _dotted(location: tuple) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _model_at(cls: type[BaseModel], location: tuple) -> type[BaseModel] | None:
    """The config class at a location; None where the location leaves typed data."""
    model: type[BaseModel] | None = cls
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model else None
        if field is not None:
            model = next(_models_in(field.annotation), None)
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _origin(location: tuple, args: list[str]) -> str | None:
    """Where a key was set: the last place that wins."""
    flag = _dotted(location).replace("_", "-")
    if any(arg.startswith("--") and arg[2:].split("=")[0].replace("_", "-") == flag for arg in args):
        return "command line"
    files = [args[i + 1] for i, arg in enumerate(args[:-1]) if arg == "@"]
    for file in reversed(files):
        if Path(file).suffix == ".toml" and _contains(tomllib.loads(Path(file).read_text()), location):
            return file
    return None


def _contains(data: Any, location: tuple) -> bool:
    for part in location:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return False
    return bool(location)
