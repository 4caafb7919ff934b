"""Python API: complete runs (`run`), and a training loop driven by the caller (`Loop`).

Imports every package in lower layers, but not the commands.
Start with `runs.py`, then `loop.py`.
"""

from braidrl.api.prompts import Environment, environment
from braidrl.api.runs import Run, run

__all__ = ["Environment", "Loop", "Run", "environment", "run"]


def __getattr__(name: str) -> object:
    if name != "Loop":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from braidrl.api.loop import Loop  # imports torch

    return Loop
