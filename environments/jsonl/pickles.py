"""A pickled reward function, stored next to its prompts (`braidrl.environment`)."""

import inspect
import pickle
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import cloudpickle
import verifiers.v1 as vf


def dump_reward(function: Callable[..., Any]) -> bytes:
    """Pickle a function for `load_reward`.

    A function of a script or notebook is pickled by value, a function of a module by reference. `sys.path` is stored
    as well, so that the module can be imported in another process.

    Raises:
        pickle.PicklingError, TypeError: the function refers to an object that cannot be pickled, such as an open file.
    """
    folders = [str(Path(folder).absolute()) for folder in sys.path]
    return pickle.dumps(folders) + cloudpickle.dumps(function)


@lru_cache
def load_reward(path: str) -> Callable[..., Any]:
    """Load a function written by `dump_reward`. Unpickling executes code: load only files from trusted writers.

    Raises:
        OSError: the file cannot be read.
        ImportError: the function needs a module that is not installed.
    """
    with Path(path).open("rb") as file:
        sys.path += [folder for folder in pickle.load(file) if folder not in sys.path]
        return pickle.load(file)


def available_arguments(row: Mapping[str, Any], trace: vf.Trace) -> dict[str, Any]:
    """Return the arguments available to a reward function: the fields of the row (`prompt` included), the model's
    last reply as `completion`, and the `trace`."""
    return {**row, "completion": trace.last_reply, "trace": trace}


def select_arguments(function: Callable[..., Any], available: Mapping[str, Any]) -> dict[str, Any]:
    """Return the available arguments that the function's signature names, or all if it has `**kwargs`."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(available)
    return {name: available[name] for name in parameters if name in available}


def pickled(task: Any, trace: vf.Trace, *, path: str) -> Any:
    """Call the function pickled in the file `path` and return its result."""
    function = load_reward(path)
    row = task.model_dump(mode="json", exclude_unset=True)
    return function(**select_arguments(function, available_arguments(row, trace)))
