"""Which dotted keys a config file may have, by its JSON schema."""

from typing import Any

from pydantic import BaseModel

from braidrl.configs.core.schema import file_schema


class KeyPaths:
    """The keys of files for a config class; those of a list are named without a number."""

    def __init__(self, cls: type[BaseModel]) -> None:
        self.schema = file_schema(cls)

    def exist(self, path: str) -> bool:
        """Whether `path` leads to a key, through any of the blocks that may stand there."""
        nodes = [self.schema]
        for name in path.split("."):
            options = [option for node in nodes for option in self._options(node)]
            nodes = [option["properties"][name] for option in options if name in option.get("properties", {})]
        return bool(nodes)

    def _options(self, node: dict[str, Any]) -> list[dict[str, Any]]:
        """The schemas that a node may be: references followed, lists entered."""
        if "$ref" in node:
            return self._options(self.schema["$defs"][node["$ref"].rpartition("/")[2]])
        inner = [
            *node.get("anyOf", []),
            *node.get("allOf", []),
            *([node["items"]] if "items" in node else []),
        ]
        return [node, *(option for each in inner for option in self._options(each))]
