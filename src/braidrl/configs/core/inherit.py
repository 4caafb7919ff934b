"""How a source inherits from its group: key by key, except where a block is something else."""

from collections.abc import Collection
from typing import Any

IDENTITY = ("type", "import_path")
"""Keys that say what a block is. A block that names another one replaces the inherited block whole."""

DEFAULT_TYPES = {"algo": "grpo", "length_penalty": "linear", "sampler": "standard"}
"""What a block is that names no `type`."""

WHOLE = ("roles",)
"""Tables that are never merged: setting one entry replaces all of them."""

OFF = "None"
"""How a file spells that a key has no value."""


def inherit_sources(group: Any, keys: Collection[str]) -> Any:
    """A group's block with each of its `source` laid over those of its `keys` that are set."""
    if not isinstance(group, dict) or not isinstance(group.get("source"), list):
        return group
    defaults = {key: group[key] for key in keys if key in group}
    sources = [
        inherit(defaults, source) if isinstance(source, dict) else source for source in group["source"]
    ]
    return {**group, "source": sources}


def dump_sources(group: dict[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """A dumped group that loads back: a key that a source switched off is written out, or it would be inherited."""
    defaults = {key: group[key] for key in keys if key in group}
    sources = [
        {**source, **spell_out(defaults, {key: source.get(key) for key in defaults})}
        for source in group.get("source", [])
    ]
    return {**group, "source": sources}


def inherit(defaults: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    """`override` laid over `defaults`, block by block.

    A block that names no `type` keeps the inherited one with the keys that it sets changed; one that names
    another `type` takes nothing over.
    """
    merged = dict(defaults)
    for key, value in override.items():
        base: Any = merged.get(key)
        merged[key] = inherit(base, value) if _same(key, base, value) else value
    return merged


def spell_out(defaults: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """`own` with its missing keys written as `"None"` where `inherit(defaults, own)` would fill them in."""
    spelled = dict(own)
    for key, base in defaults.items():
        if own.get(key) is None and base is not None:
            spelled[key] = OFF
        elif _same(key, base, own[key]):
            spelled[key] = spell_out(base, own[key])
    return spelled


def _same(key: str, base: Any, value: Any) -> bool:
    """Whether both are blocks of one kind, to be merged."""
    if key in WHOLE or not (isinstance(base, dict) and isinstance(value, dict)):
        return False
    default = {"type": DEFAULT_TYPES.get(key)}
    base = default | base
    return all(value.get(name, base.get(name)) == base.get(name) for name in IDENTITY)
