"""Post-training of language models with reinforcement learning.

Exports the Python API `run`, `environment` and `Loop` (docs/python.md), imported on first use.
Start with `cli.py` for commands, `api/` for Python and docs/architecture.md for the layers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from braidrl.api import Environment as Environment
    from braidrl.api import Run as Run
    from braidrl.api import environment as environment
    from braidrl.api import run as run
    from braidrl.api.loop import Loop as Loop

__version__ = "0.1.0"
__all__ = ["Environment", "Loop", "Run", "__version__", "environment", "run"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("braidrl.api"), name)
