"""JSON schema of a config file for editors: names, types, ranges, choices and descriptions of all keys."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from braidrl.configs.core.inherit import OFF

DRAFT = "http://json-schema.org/draft-07/schema#"
"""JSON schema draft that TOML and YAML plugins of editors support."""

NULL = {"enum": [None, OFF]}
"""Schema of a null value, which TOML files spell as the string `"None"`."""


def file_schema(cls: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of config files for `cls`.

    No key is required, since another file, a flag, an inherited block or the root may set it. Earlier spellings of keys
    are omitted, so that editors mark them.
    """
    schema = cls.model_json_schema(mode="validation", schema_generator=_FileSchema)
    return {"$schema": DRAFT, "title": cls.__name__, **{key: schema[key] for key in schema if key != "title"}}


class _FileSchema(GenerateJsonSchema):
    """Pydantic's schema without constraints that apply only to a complete config, limited to keywords of draft 7."""

    def generate(self, schema: Any, mode: Any = "validation") -> dict[str, Any]:
        return _plain(super().generate(schema, mode))


def _plain(node: Any) -> Any:
    """Return part of a schema, rewritten for draft 7."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    if node == {"type": "null"}:
        return NULL
    node = dict(_rewritten(node))
    if "$ref" in node and len(node) > 1:  # draft 7 ignores keywords next to $ref
        node["allOf"] = [{"$ref": node.pop("$ref")}]
    return node


def _rewritten(node: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if key in ("default", "enum", "const"):
            yield key, value
        elif key in ("properties", "$defs"):
            yield key, {name: _plain(each) for name, each in value.items()}
        elif key == "oneOf":  # a block that inherits its `type` may match several members
            yield "anyOf", _plain(value)
        elif key == "description":
            yield key, " ".join(value.split()) if isinstance(value, str) else value
        elif key not in ("required", "title", "discriminator"):
            yield key, _plain(value)
