"""Reward functions: how one is found, what it may return, and those that need no code of your own."""

import math
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


def reward_of(result: Any, path: str) -> float:
    """What a reward function returned, as a number.

    Raises:
        TypeError: it is none, or not finite.
    """
    try:
        reward = float("nan" if isinstance(result, str) else result)
    except (TypeError, ValueError):
        reward = math.nan
    if not math.isfinite(reward):
        raise TypeError(f"reward {path!r} returned {result!r:.200}; it must return a finite number")
    return reward


def exact(task: Any, trace: vf.Trace, *, key: str = "answer") -> float:
    """1 if the last reply is what the line's field `key` says, else 0."""
    return float(trace.last_reply == str(getattr(task, key)).strip())


def contains(task: Any, trace: vf.Trace, *, key: str = "answer") -> float:
    """1 if the last reply contains what the line's field `key` says, else 0."""
    return float(str(getattr(task, key)).strip() in trace.last_reply)
