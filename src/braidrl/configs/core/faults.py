"""Conversion of pydantic's validation errors to one-line `ConfigError`s with the key as the user writes it."""

import tomllib
import types
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from braidrl.configs.core.errors import ConfigError

Location = tuple[str | int, ...]


def explain(cls: type[BaseModel], error: ValidationError, args: list[str]) -> Iterator[ConfigError]:
    """Yield one error per key.

    Shared root keys and inherited source keys are copied into every process or source before validation, so an invalid
    one fails once per copy. Only the error of the original key is reported.
    """
    # a block where `Literal | block` is allowed also fails as the literal, which the user did not write
    details = [
        detail
        for detail in error.errors(include_url=False)
        if not (detail["type"] == "literal_error" and isinstance(detail["input"], dict))
    ]
    failed = {detail["loc"] for detail in details}
    for detail in details:
        location = detail["loc"]  # of a copy: ("trainer", "seed") where ("seed",) has failed too
        if len(location) > 1 and (location[1:] in failed or _group_key(location) in failed):
            continue
        yield _explain_one(cls, detail, args)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the config classes in an annotation, including those inside unions, lists and dicts."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def tag_of(model: type[BaseModel]) -> str | None:
    """Return the `type` that selects a config class in a union, or None if it has none."""
    field = model.model_fields.get("type")
    return field.default if field is not None else None


def _group_key(location: Location) -> Location | None:
    """Return the location in the enclosing group from which a key of a source is inherited, or None."""
    if "source" not in location:
        return None
    at = location.index("source")
    return location[:at] + location[at + 2 :]


def _explain_one(cls: type[BaseModel], detail: Any, args: list[str]) -> ConfigError:
    location, owner = _locate(cls, detail["loc"])
    path, origin = _dotted(location), _origin(location, args)
    if detail["type"] == "extra_forbidden":
        known = list(owner.model_fields) if owner else []
        nearest = get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        suggestion = _dotted((*location[:-1], nearest[0])) if nearest else None
        message = "unknown key" if suggestion else f"unknown key; valid here: {', '.join(known)}"
        return ConfigError(path, message, suggestion, origin)
    if detail["type"] == "missing":
        return ConfigError(path, "is required; set it in the config file or on the command line")
    if detail["type"] == "union_tag_invalid":
        tag, known = detail["ctx"]["tag"], detail["ctx"]["expected_tags"].replace("'", "").split(", ")
        nearest = get_close_matches(tag, known, n=1, cutoff=0.5)
        message = f"unknown type {tag!r}; must be one of {', '.join(known)}"
        where = (*location, "type")
        return ConfigError(_dotted(where), message, nearest[0] if nearest else None, _origin(where, args))
    message = detail["msg"].removeprefix("Value error, ")
    message = message if detail["type"] == "value_error" else message[:1].lower() + message[1:]
    if (
        location
        and detail["type"] != "value_error"
        and not isinstance(detail["input"], dict | list | BaseModel)
    ):
        message += f" (got {detail['input']!r})"
    return ConfigError(path, message, origin=origin)


def _locate(cls: type[BaseModel], location: Location) -> tuple[Location, type[BaseModel] | None]:
    """Return (keys as the user writes them, config class that owns the last key).

    Pydantic's location also contains the names of union members, which are not keys.
    """
    keys: list[str | int] = []
    owner, annotation = None, _plain(cls)
    for part in location:
        if _is_union(annotation):
            members = list(_members(annotation))
            chosen = [member for member in members if part in _names(member)]
            annotation = (chosen or members)[0] if chosen or len(members) == 1 else None
            if chosen or annotation is None:
                continue
        keys.append(part)
        owner = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
        if owner is not None:
            field = owner.model_fields.get(str(part))
            annotation = _plain(field.annotation) if field is not None else None
        else:
            arguments = get_args(annotation)
            annotation = _plain(arguments[-1]) if arguments else None
    return tuple(keys), owner


def _plain(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the members of a union except None, flattening nested unions."""
    if not _is_union(annotation):
        yield annotation
        return
    for member in map(_plain, get_args(annotation)):
        if member is not type(None):
            yield from _members(member)


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _names(member: Any) -> tuple[Any, ...]:
    """Return the names that pydantic may use for a union member in a location."""
    if isinstance(member, type) and issubclass(member, BaseModel):
        return (tag_of(member), member.__name__)
    return ()


def _dotted(location: Location) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _origin(location: Location, args: list[str]) -> str | None:
    """Return the source that set a key: the command line, else the last file that contains it."""
    flag = _dotted(location).replace("_", "-")
    if any(arg.startswith("--") and arg[2:].split("=")[0].replace("_", "-") == flag for arg in args):
        return "command line"
    files = [args[i + 1] for i, arg in enumerate(args[:-1]) if arg == "@"]
    for file in reversed(files):
        if _contains(_read(Path(file)), location):
            return file
    return None


def _read(file: Path) -> Any:
    """Parse a config file. JSON is read as YAML, which includes it."""
    return tomllib.loads(file.read_text()) if file.suffix == ".toml" else yaml.safe_load(file.read_text())


def _contains(data: Any, location: Location) -> bool:
    for part in location:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return False
    return bool(location)
