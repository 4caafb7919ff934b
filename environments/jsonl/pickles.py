"""A reward function of another program, kept in a file beside its prompts (`braidrl.environment`)."""

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
    """A function as `load_reward` reads it. One of a script or a notebook travels whole, one of a module by its name,
    and so does the path on which modules are found.

    Raises:
        pickle.PicklingError, TypeError: it holds something that cannot travel, such as an open file.
    """
    places = [str(Path(place).absolute()) for place in sys.path]
    return pickle.dumps(places) + cloudpickle.dumps(function)


@lru_cache
def load_reward(path: str) -> Callable[..., Any]:
    """The function in a file. Whoever can write the file can run code here, as with a module.

    Raises:
        OSError: there is no such file.
        ImportError: it needs a module that is not there.
    """
    with Path(path).open("rb") as file:
        sys.path += [place for place in pickle.load(file) if place not in sys.path]
        return pickle.load(file)


def offered(row: Mapping[str, Any], trace: vf.Trace) -> dict[str, Any]:
    """What a reward function may ask for by name: the fields of its row, among them the `prompt`; the model's last
    reply, `completion`; and the whole `trace`."""
    return {**row, "completion": trace.last_reply, "trace": trace}


def asked_for(function: Callable[..., Any], offers: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the offers that the function's signature names; all of them where it has `**`."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(offers)
    return {name: offers[name] for name in parameters if name in offers}


def pickled(task: Any, trace: vf.Trace, *, path: str) -> Any:
    """What the function in the file `path` returns."""
    function = load_reward(path)
    row = task.model_dump(mode="json", exclude_unset=True)
    return function(**asked_for(function, offered(row, trace)))
