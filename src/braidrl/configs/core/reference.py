"""Reference of all keys of a config with types, defaults and descriptions, as printed by `--help`."""

import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from braidrl.configs.core.faults import models_in, tag_of

WIDTH = 110
INDENT = 8


@dataclass
class Key:
    """One settable key."""

    path: str
    """Dotted path as on the command line. `[]` denotes an element of a list."""
    type: str
    default: str | None
    """Default as text, or None if the key is required."""
    description: str


def keys_of(cls: type[BaseModel], prefix: str = "", hidden: frozenset[str] = frozenset()) -> Iterator[Key]:
    """Yield the keys of a config class depth first, in field order, except `hidden` ones."""
    for name, field in cls.model_fields.items():
        path: str = f"{prefix}{name}"
        annotation: Any = field.annotation
        if path in hidden:
            continue
        if get_origin(annotation) is list:
            (element,) = get_args(annotation)
            path, annotation = (f"{path}[]", element) if any(models_in(element)) else (path, annotation)
        if _is_model(annotation):
            yield from keys_of(annotation, f"{path}.", hidden)
        elif tagged := [model for model in models_in(annotation) if tag_of(model)]:
            yield from _tagged_keys(tagged, path, field, hidden)
        else:
            yield from _value_or_block(path, annotation, field, hidden)


def _value_or_block(path: str, annotation: Any, field: FieldInfo, hidden: frozenset[str]) -> Iterator[Key]:
    """Yield a plain key, or the keys of a block that may be None or a plain value instead."""
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    blocks = [member for member in members if _is_model(member)]
    if not blocks or set(members) - {*blocks, type(None)}:
        yield Key(path, type_name(annotation), default_of(field), described(field))
    for block in blocks:
        yield from keys_of(block, f"{path}.", hidden)


def _tagged_keys(
    models: list[type[BaseModel]], path: str, field: FieldInfo, hidden: frozenset[str]
) -> Iterator[Key]:
    """Yield the keys of a block whose `type` selects its class, each once, with the types that have it."""
    tags = [str(tag_of(model)) for model in models]
    chosen = field.get_default(call_default_factory=True, validated_data={})
    default = getattr(chosen, "type", "none")
    yield Key(f"{path}.type", "{" + ",".join(tags) + "}", default, described(field))
    found: dict[str, Key] = {}
    owners: dict[str, list[str]] = {}
    for tag, model in zip(tags, models, strict=True):
        for key in keys_of(model, f"{path}.", hidden | {f"{path}.type"}):
            found.setdefault(key.path, key)
            owners.setdefault(key.path, []).append(tag)
    for name, key in found.items():
        note = "" if owners[name] == tags else f" ({', '.join(owners[name])})"
        yield replace(key, description=key.description + note)


def help_text(cls: type[BaseModel], prog: str, hidden: frozenset[str] = frozenset()) -> str:
    """Return the text of `PROG --help`."""
    lines = [f"usage: {prog} @ FILE [@ FILE ...] [--dotted.key VALUE ...]", ""]
    lines += textwrap.wrap(" ".join((cls.__doc__ or "").split()), WIDTH)
    lines += ["", "keys (in a file, or as flags):", ""]
    for key in keys_of(cls, hidden=hidden):
        lines += key_lines(key, "--")
    return "\n".join(lines)


def key_lines(key: Key, dashes: str = "") -> list[str]:
    """Return the lines of a key: its type and default, then its wrapped description."""
    default = "(required)" if key.default is None else f"= {key.default}"
    indent = " " * INDENT
    return [
        f"  {dashes}{key.path} {key.type}  {default}",
        *textwrap.wrap(key.description, WIDTH, initial_indent=indent, subsequent_indent=indent),
    ]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def type_name(annotation: Any) -> str:
    """Return a type as text: `int`, `str|none`, `{one,of,these}`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "{" + ",".join(map(str, arguments)) + "}"
    if origin in (Union, types.UnionType):
        return "|".join(type_name(argument) for argument in arguments)
    if origin is not None:
        return f"{origin.__name__}[{', '.join(type_name(argument) for argument in arguments)}]"
    return "none" if annotation is type(None) else getattr(annotation, "__name__", str(annotation)).lower()


def described(field: FieldInfo) -> str:
    """Return the description of a key on a single line."""
    return " ".join((field.description or "").split())


def default_of(field: FieldInfo) -> str | None:
    """Return the default of a key as text, or None if the key is required."""
    if field.is_required():
        return None
    default = field.get_default(call_default_factory=True, validated_data={})
    return "none" if default is None else str(default).replace("\n", "\\n")
