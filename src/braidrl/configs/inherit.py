"""How a training source inherits from its group: key by key, except where a block is something else."""

from typing import Any

IDENTITY = ("type", "import_path")
"""Keys that say what a block is. A block that names another one replaces the inherited block whole."""

DEFAULT_TYPES = {"algo": "grpo", "length_penalty": "linear", "sampler": "standard"}
"""What a block is that names no `type`."""

WHOLE = ("roles",)
"""Tables that are never merged: setting one entry replaces all of them."""

OFF = "None"
"""How a file spells that a key has no value."""


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
