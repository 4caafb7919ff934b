"""Python API: whole runs (`run`), and a training loop that the caller drives (`Loop`).

Imports every package below the commands.
Start with `runs.py`, then `loop.py`.
"""

from braidrl.api.prompts import Environment, environment
from braidrl.api.runs import Run, run

__all__ = ["Environment", "Loop", "Run", "environment", "run"]


def __getattr__(name: str) -> object:
    if name != "Loop":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from braidrl.api.loop import Loop  # it needs torch

    return Loop
