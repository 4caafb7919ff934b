"""Inheritance of a source's keys from its group: key by key, unless the source selects a different type of block."""

from collections.abc import Collection
from typing import Any

IDENTITY = ("type", "import_path")
"""Keys that identify a block. A block that sets a different value replaces the inherited block entirely."""

DEFAULT_TYPES = {"algo": "grpo", "length_penalty": "linear", "sampler": "standard"}
"""Types of blocks that do not set `type`."""

NEVER_MERGED = ("roles",)
"""Tables that are never merged: setting one entry replaces the whole table."""

OFF = "None"
"""Spelling of a null value in a file, because TOML has none."""


def inherit_sources(group: Any, keys: Collection[str]) -> Any:
    """Return a group's block in which each entry of `source` has inherited those of `keys` that the group sets."""
    if not isinstance(group, dict) or not isinstance(group.get("source"), list):
        return group
    defaults = {key: group[key] for key in keys if key in group}
    sources = [
        inherit(defaults, source) if isinstance(source, dict) else source for source in group["source"]
    ]
    return {**group, "source": sources}


def dump_sources(group: dict[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return a dumped group that loads as the same config.

    Keys that a source has set to null are written explicitly, since it would otherwise inherit them again.
    """
    defaults = {key: group[key] for key in keys if key in group}
    sources = [
        {**source, **mark_unset(defaults, {key: source.get(key) for key in defaults})}
        for source in group.get("source", [])
    ]
    return {**group, "source": sources}


def inherit(defaults: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    """Return `defaults` updated with `override`, block by block.

    A block of the same type (or without `type`) changes only the keys that it sets. A block of a different type
    replaces the inherited block.
    """
    merged = dict(defaults)
    for key, value in override.items():
        base: Any = merged.get(key)
        merged[key] = inherit(base, value) if _mergeable(key, base, value) else value
    return merged


def mark_unset(defaults: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return `own` with `"None"` for each missing key that `inherit(defaults, own)` would fill in."""
    marked = dict(own)
    for key, base in defaults.items():
        if own.get(key) is None and base is not None:
            marked[key] = OFF
        elif _mergeable(key, base, own[key]):
            marked[key] = mark_unset(base, own[key])
    return marked


def _mergeable(key: str, base: Any, value: Any) -> bool:
    """Return True if both values are blocks of the same type."""
    if key in NEVER_MERGED or not (isinstance(base, dict) and isinstance(value, dict)):
        return False
    base = {"type": DEFAULT_TYPES.get(key)} | base
    return all(value.get(name, base.get(name)) == base.get(name) for name in IDENTITY)
