"""Reward functions: how one is found, and those that need no code of your own."""

from collections.abc import Callable
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.utils.loaders import plugged_fn


def reward_function(path: str) -> Callable[..., Any]:
    """The function behind an import path.

    Raises:
        ImportError, AttributeError, TypeError: there is none.
    """
    try:
        return plugged_fn(path)
    except (ValueError, OSError) as error:
        raise ImportError(str(error)) from None


def exact(task: Any, trace: vf.Trace, *, key: str = "answer") -> float:
    """1 if the last reply is what the line's field `key` says, else 0."""
    return float(trace.last_reply == str(getattr(task, key)).strip())


def contains(task: Any, trace: vf.Trace, *, key: str = "answer") -> float:
    """1 if the last reply contains what the line's field `key` says, else 0."""
    return float(str(getattr(task, key)).strip() in trace.last_reply)
