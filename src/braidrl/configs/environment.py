"""Resolution of environment blocks to configs of verifiers environments.

verifiers takes seconds to import, so it is imported only here, and only when a block is resolved.
"""

import copy
import importlib
import pkgutil
from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from braidrl.configs.core.errors import ConfigError

if TYPE_CHECKING:
    import verifiers.v1 as vf

HARNESS = "braid-chat"
"""Default harness of an agent, used if neither the block, its environment nor its taskset selects one."""
RUNTIME = {"type": "subprocess"}
"""Default runtime of an agent (a process on this machine), used if neither the block nor its environment selects
one."""
INTERCEPTION = {"type": "elastic", "multiplex": 16}
"""Interception pool of rollouts on this machine. The HTTP client of verifiers scans all its connections on every
request, so several small pools are faster than one large pool."""
PLUGINS = {"taskset": "tasksets", "env": "envs", "harness": "harnesses"}
"""Subpackages of `verifiers.v1` with its own plugins, by kind."""


def resolve_env(block: dict[str, Any], path: str = "env") -> "vf.EnvConfig":
    """Validate an environment block with the config class of its environment and return the config.

    An agent without a harness or runtime gets the in-process chat harness on this machine (`HARNESS`, `RUNTIME`), where
    verifiers would default to a shell harness in a remote sandbox.

    Args:
        block: the user's keys, such as `{"taskset": {"id": "reverse-text"}}`; it is not modified.
        path: path of the block in the run's configuration, for error messages.

    Raises:
        ConfigError: if a key or id is unknown, a value has the wrong type, or the taskset id is missing.
    """
    from verifiers.v1.utils import loaders

    block = copy.deepcopy(block)
    taskset_id = _required_id(block.get("taskset"), f"{path}.taskset")
    env_id = block.get("id") or ""
    _check_plugin(loaders.taskset_class, "taskset", taskset_id, f"{path}.taskset.id")
    if env_id:
        _check_plugin(loaders.import_environment, "env", env_id, f"{path}.id")
    config_class = loaders.env_config_type(taskset_id, env_id)
    _fill_agents(block, config_class, taskset_id, path)
    try:
        config = loaders.resolve_env_config(copy.deepcopy(block))
    except ValidationError as error:
        raise _explain(error, config_class, block, path) from None
    _check_tools(config, path)
    return config


def agents_of(config: "vf.EnvConfig") -> list[str]:
    """Return the names of an environment's agents, as used in its traces."""
    return list(_roles(type(config)))


def _roles(config_class: type["vf.EnvConfig"]) -> dict[str, "vf.AgentConfig"]:
    """Return the agents of an environment with their declared defaults.

    Every field whose default is an `AgentConfig` is an agent.
    """
    from verifiers.v1.configs.agent import AgentConfig

    fields = config_class.model_fields
    return {name: field.default for name, field in fields.items() if isinstance(field.default, AgentConfig)}


def _fill_agents(
    block: dict[str, Any], config_class: type["vf.EnvConfig"], taskset_id: str, path: str
) -> None:
    from verifiers.v1.utils import loaders

    bundled_harness = loaders.default_harness_id(taskset_id) == taskset_id
    roles = _roles(config_class)
    for role, default in roles.items():
        agent = block.setdefault(role, {})
        if not isinstance(agent, dict):
            return  # verifiers reports the type error
        harness, runtime = agent.get("harness"), agent.get("runtime")
        if isinstance(harness, dict) and "id" in harness:
            _check_plugin(loaders.harness_class, "harness", harness["id"], f"{path}.{role}.harness.id")
        if default.harness is None and not bundled_harness and (harness is None or isinstance(harness, dict)):
            agent["harness"] = {"id": HARNESS, **(harness or {})}
        if "runtime" not in default.model_fields_set and (runtime is None or isinstance(runtime, dict)):
            agent["runtime"] = {**RUNTIME, **(runtime or {})}
    if all(block[role].get("runtime") == RUNTIME for role in roles):
        block.setdefault("interception", dict(INTERCEPTION))


def _check_tools(config: "vf.EnvConfig", path: str) -> None:
    """Raise `ConfigError` if the harness does not offer the tools that the task's data class declares with `@tool`.

    The model would run without them, with no error. Custom environment classes are not checked, since they may offer
    the tools themselves.
    """
    from verifiers.v1.envs.single_agent import SingleAgentEnvConfig
    from verifiers.v1.utils import loaders

    if type(config) is not SingleAgentEnvConfig:
        return
    data = loaders.taskset_class(config.taskset.id).task_type().data_type()
    members = {name: member for owner in data.__mro__ for name, member in vars(owner).items()}
    tools = sorted(name for name, member in members.items() if callable(member) and hasattr(member, "tool"))
    harness = config.agent_harnesses()["agent"].id
    if tools and not getattr(loaders.harness_class(harness), "OFFERS_TASK_TOOLS", False):
        raise ConfigError(
            f"{path}.agent.harness.id",
            f"harness {harness!r} does not offer the tools of taskset {config.taskset.id!r} ({', '.join(tools)}), "
            f"which are methods of its task data; use {HARNESS!r}, or provide the tools as MCP tools (vf.Toolset)",
        )


def _required_id(taskset: Any, path: str) -> str:
    taskset_id = taskset.get("id") if isinstance(taskset, dict) else None
    if not isinstance(taskset_id, str) or not taskset_id:
        raise ConfigError(
            f"{path}.id", f'an environment needs a taskset id, such as "reverse-text" (got {taskset_id!r})'
        )
    return taskset_id


def _check_plugin(load: Callable[[str], Any], kind: str, plugin_id: Any, path: str) -> None:
    """Import the package of a plugin id, so that an error is reported under the key of the id."""
    if not isinstance(plugin_id, str):
        raise ConfigError(path, f"a {kind} id must be a string (got {plugin_id!r})")
    try:
        load(plugin_id)
    except ModuleNotFoundError as error:
        missing = getattr(error.__cause__, "name", None) or ""
        if missing.rpartition(".")[2] != plugin_id.replace("-", "_").lower():
            raise ConfigError(
                path, f"{kind} {plugin_id!r} needs the package {missing!r}; install it"
            ) from error
        similar = get_close_matches(plugin_id, _installed(kind), n=1, cutoff=0.75)
        message = f"there is no {kind} {plugin_id!r}; install the package that provides it, or correct the id"
        raise ConfigError(path, message, similar[0] if similar else None) from error
    except Exception as error:
        raise ConfigError(
            path, f"{kind} {plugin_id!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def _installed(kind: str) -> list[str]:
    """Return candidate ids for suggestions: plugins of verifiers, and all installed top-level packages."""
    namespace = importlib.import_module(f"verifiers.v1.{PLUGINS[kind]}")
    modules = [*pkgutil.iter_modules(namespace.__path__), *pkgutil.iter_modules()]
    return [module.name.replace("_", "-") for module in modules if module.ispkg]


def _explain(error: ValidationError, model: type[BaseModel], block: dict[str, Any], path: str) -> ConfigError:
    """Return the first error (unknown keys before all others) with its full path and the closest valid key."""
    faults = error.errors(include_url=False)
    fault = next((item for item in faults if item["type"] == "extra_forbidden"), faults[0])
    parent, key, owners = _locate(fault, model, block, path)
    where = f"{parent}.{key}" if key else parent
    if fault["type"] == "extra_forbidden":
        known = sorted({name for owner in owners for name in owner.model_fields})
        similar = get_close_matches(key, known, n=1, cutoff=0.5)
        if similar:
            return ConfigError(where, "unknown key", f"{parent}.{similar[0]}")
        return ConfigError(where, f"unknown key; valid here: {', '.join(known)}")
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] not in ("missing", "value_error"):
        message = f"{message[0].lower()}{message[1:]} (got {fault['input']!r})"
    return ConfigError(where, message)


def _locate(
    fault: Any, model: type[BaseModel], data: Any, path: str
) -> tuple[str, str, list[type[BaseModel]]]:
    """Return (path of the block, key in it, config classes that may define the key), as the user wrote them.

    Pydantic's location also contains the names of union members, and its annotations lack the classes selected by
    plugin ids.
    """
    owners, key = [model], ""
    for position, part in enumerate(fault["loc"]):
        last = position == len(fault["loc"]) - 1
        written = part in data if isinstance(data, dict) else isinstance(part, int) and isinstance(data, list)
        if not written and not (last and fault["type"] == "missing"):
            owners = [owner for owner in owners if part in (owner.__name__, _tag(owner))] or owners
            continue
        if last and isinstance(part, str):
            key = part
        else:
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
            data = data[part]
            owners = _owners_below(owners, part, data)
    return path, key, owners


def _owners_below(owners: list[type[BaseModel]], part: str | int, data: Any) -> list[type[BaseModel]]:
    from verifiers.v1.utils import loaders

    by_id = {"taskset": loaders.taskset_config_type, "harness": loaders.harness_config_type}
    if part in by_id and isinstance(data, dict) and data.get("id"):
        return [by_id[str(part)](data["id"])]
    if isinstance(part, int):
        return owners
    fields = [owner.model_fields[part] for owner in owners if part in owner.model_fields]
    return [model for field in fields for model in _models_in(field.annotation)]


def _tag(model: type[BaseModel]) -> Any:
    field = model.model_fields.get("type")
    return field.default if field else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]
