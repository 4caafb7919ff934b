"""Run environments as in a training run: resolved from a config block, behind the real interception server."""

from typing import Any

import verifiers.v1 as vf
from verifiers.v1.env import RunSlot
from verifiers.v1.utils.loaders import load_environment, load_taskset, taskset_config_type

from braidrl.configs.environment import resolve_env
from tests.support.scripted_model import ScriptedModel


def tasks(taskset_id: str, **keys: Any) -> list[Any]:
    """Load all tasks of a taskset by id."""
    config = taskset_config_type(taskset_id).model_validate({"id": taskset_id, **keys})
    return list(load_taskset(config))


def endpoint(base_url: str) -> vf.EvalClientConfig:
    """Return the client of a scripted model."""
    return vf.EvalClientConfig(base_url=base_url, api_key_var="NO_SUCH_KEY")


async def play(model: ScriptedModel, block: dict[str, Any], task: vf.Task | None = None) -> vf.Episode:
    """Run one episode of the environment `block`, by default on its first task."""
    env = load_environment(resolve_env(block))
    chosen = next(iter(env.taskset)) if task is None else task
    async with model.serve() as base_url, env.serving():
        context = vf.ModelContext(model="m", client=endpoint(base_url), sampling=vf.SamplingConfig())
        return await env.run_slot(RunSlot(chosen), context)
