"""Dotted keys of a config file, from its JSON schema."""

from typing import Any

from pydantic import BaseModel

from braidrl.configs.core.schema import file_schema


class KeyPaths:
    """Keys of the config files of a class. Elements of lists have no index."""

    def __init__(self, cls: type[BaseModel]) -> None:
        self.schema = file_schema(cls)

    def exist(self, path: str) -> bool:
        """Return True if `path` is a key, in any of the alternative blocks."""
        nodes = [self.schema]
        for name in path.split("."):
            options = [option for node in nodes for option in self._options(node)]
            nodes = [option["properties"][name] for option in options if name in option.get("properties", {})]
        return bool(nodes)

    def _options(self, node: dict[str, Any]) -> list[dict[str, Any]]:
        """Yield the alternative schemas of a node, with references resolved and lists replaced by their elements."""
        if "$ref" in node:
            return self._options(self.schema["$defs"][node["$ref"].rpartition("/")[2]])
        inner = [
            *node.get("anyOf", []),
            *node.get("allOf", []),
            *([node["items"]] if "items" in node else []),
        ]
        return [node, *(option for each in inner for option in self._options(each))]
