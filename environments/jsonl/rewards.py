"""Reward functions: import, check of the result, and the built-in `exact` and `contains`."""

import math
from collections.abc import Callable
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.utils.loaders import plugged_fn


def reward_function(path: str) -> Callable[..., Any]:
    """Import a reward function.

    Raises:
        ImportError, AttributeError, TypeError: the path does not lead to a function.
    """
    try:
        return plugged_fn(path)
    except (ValueError, OSError) as error:
        raise ImportError(str(error)) from None


def reward_of(result: Any, path: str) -> float:
    """Return the result of a reward function as a float.

    Raises:
        TypeError: the result is not a finite number.
    """
    try:
        reward = float("nan" if isinstance(result, str) else result)
    except (TypeError, ValueError):
        reward = math.nan
    if not math.isfinite(reward):
        raise TypeError(f"reward {path!r} returned {result!r:.200}; it must return a finite number")
    return reward


def exact(task: Any, trace: vf.Trace, *, key: str = "answer") -> float:
    """Return 1 if the last reply equals the line's field `key`, else 0."""
    return float(trace.last_reply == str(getattr(task, key)).strip())


def contains(task: Any, trace: vf.Trace, *, key: str = "answer") -> float:
    """Return 1 if the last reply contains the line's field `key`, else 0."""
    return float(str(getattr(task, key)).strip() in trace.last_reply)
