"""The JSON schema of a config file, as editors take it: names, types, ranges, choices, and what each key means."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from braidrl.configs.core.inherit import OFF

DRAFT = "http://json-schema.org/draft-07/schema#"
"""What the editors' plugins for TOML and YAML understand."""

NOTHING = {"enum": [None, OFF]}
"""No value: TOML has no null, and spells it so."""


def file_schema(cls: type[BaseModel]) -> dict[str, Any]:
    """The schema of files for `cls`.

    No key is required: what one file leaves out, another may hold, a flag, a block that it inherits from, or the root.
    Earlier spellings are not in it, so that an editor shows them.
    """
    schema = cls.model_json_schema(mode="validation", schema_generator=_FileSchema)
    return {"$schema": DRAFT, "title": cls.__name__, **{key: schema[key] for key in schema if key != "title"}}


class _FileSchema(GenerateJsonSchema):
    """Pydantic's schema without what only holds for a whole config, and in words that old drafts understand."""

    def generate(self, schema: Any, mode: Any = "validation") -> dict[str, Any]:
        return _plain(super().generate(schema, mode))


def _plain(node: Any) -> Any:
    """A part of a schema, rewritten."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    if node == {"type": "null"}:
        return NOTHING
    node = dict(_rewritten(node))
    if "$ref" in node and len(node) > 1:  # beside a reference, old drafts read nothing
        node["allOf"] = [{"$ref": node.pop("$ref")}]
    return node


def _rewritten(node: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if key in ("default", "enum", "const"):
            yield key, value
        elif key in ("properties", "$defs"):
            yield key, {name: _plain(each) for name, each in value.items()}
        elif key == "oneOf":  # without its `type`, which it may inherit, a block can be several things
            yield "anyOf", _plain(value)
        elif key == "description":
            yield key, " ".join(value.split()) if isinstance(value, str) else value
        elif key not in ("required", "title", "discriminator"):
            yield key, _plain(value)
