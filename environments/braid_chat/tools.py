"""Tools that run in the caller's process: methods of the task's data class decorated with `@tool`.

    class WeatherData(vf.TaskData):
        forecasts: dict[str, str]

        @tool
        def forecast(self, city: str) -> str:
            "Tomorrow's weather in a city."
            return self.forecasts[city]

The model receives the method's name, its docstring, and a JSON schema of its parameters. A parameter named `state` is
hidden from the model: it receives the rollout's mutable `trace.state`. A method may be async. A method that waits for
something must be async, because all rollouts share one event loop.
"""

import functools
import inspect
import json
import logging
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema
from verifiers.v1 import TaskData, Trace, tool

__all__ = ["PythonTools", "parse_arguments", "tool", "tool_schemas"]

logger = logging.getLogger(__name__)

STATE = "state"
"""Name of the parameter that receives the rollout's state."""


class PythonTools:
    """Python tools of one task. `schemas` has the format of the OpenAI chat API."""

    def __init__(self, data: TaskData, trace: Trace) -> None:
        self._data = data
        self._trace = trace
        self._functions = _functions(data.__class__)
        self.schemas = tool_schemas(data)

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool and return its result as text.

        Exceptions of the tool and arguments that do not match its signature are returned as text that starts with
        `error:`.
        """
        function = self._functions[name]
        try:
            checked = _parameters(function).model_validate(arguments)
        except ValidationError as error:
            return f"error: wrong arguments for {name}: {_faults(error)}"
        values = {key: getattr(checked, key) for key in checked.model_fields_set}
        if STATE in inspect.signature(function).parameters:
            values[STATE] = self._trace.state
        try:
            result = function(self._data, **values)
            if inspect.isawaitable(result):
                result = await result
        except Exception as error:  # a tool may raise anything; the model receives it as the result
            logger.info("tool %s raised", name, exc_info=True)
            return f"error: {type(error).__name__}: {error}"
        return result if isinstance(result, str) else json.dumps(result, default=str)


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse the arguments of a tool call.

    Raises:
        ValueError: `text` is not JSON (for example cut off) or not an object (for example encoded twice). The message
            is written for the model and includes the remedy.
    """
    try:
        arguments = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"the tool arguments are not valid JSON ({error}); send one JSON object") from None
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        raise ValueError(
            f"the tool arguments must be a JSON object, not {kind}; send the object itself, encoded once"
        )
    return arguments


def tool_schemas(data: TaskData) -> list[dict[str, Any]]:
    """Return the schemas of a task's Python tools in the format of the OpenAI chat API."""
    return [_schema(function) for function in _functions(data.__class__).values()]


@functools.cache
def _functions(data_class: type[TaskData]) -> dict[str, Callable[..., Any]]:
    """Return the functions decorated with `@tool`, by the name under which the model calls them."""
    members = (inspect.getattr_static(data_class, name) for name in dir(data_class))
    return {_name(member): member for member in members if callable(member) and hasattr(member, "tool")}


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "tool_name", None) or function.__name__


@functools.cache
def _parameters(function: Callable[..., Any]) -> type[BaseModel]:
    """Return the parameters that the model provides, as a pydantic model that forbids other keys."""
    hints = get_type_hints(function)
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.name == STATE:
            continue
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    return create_model(_name(function), __config__=ConfigDict(extra="forbid"), **fields)


@functools.cache
def _schema(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = _parameters(function).model_json_schema(schema_generator=_Untitled)
    parameters.pop("title", None)
    description = inspect.getdoc(function) or ""
    return {
        "type": "function",
        "function": {"name": _name(function), "description": description, "parameters": parameters},
    }


class _Untitled(GenerateJsonSchema):
    """Generates schemas without titles, which repeat the names and cost prompt tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _faults(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
