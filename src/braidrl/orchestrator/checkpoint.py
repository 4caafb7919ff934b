"""The orchestrator's half of a checkpoint: everything that decides what is dispatched next."""

import logging
from typing import Any

import msgspec

from braidrl.configs.trainer.config import CheckpointConfig
from braidrl.orchestrator.envs.source import TrainEnv
from braidrl.orchestrator.pipeline.dispatcher import Dispatcher
from braidrl.utils.publish import publish_bytes
from braidrl.utils.run_folder import RunFolder

logger = logging.getLogger(__name__)


def due(config: CheckpointConfig, step: int, max_steps: int) -> bool:
    """Whether the state after `step` is saved."""
    return step == max_steps or (config.interval is not None and step % config.interval == 0)


def capture(step: int, dispatcher: Dispatcher) -> bytes:
    """The state at the moment when the batch of `step` is complete."""
    state = {
        "step": step,
        "seed": dispatcher.seed,
        "dispatcher": dispatcher.state_dict(),
        "envs": {env.name: _env_state(env) for env in dispatcher.envs},
    }
    return msgspec.json.encode(state)


def save(run: RunFolder, step: int, state: bytes) -> None:
    """Publish what `capture` took. Only once the step's records and metrics are written: whoever resumes from here
    does not write them again."""
    publish_bytes(run.orchestrator_checkpoint(step), state)


def load(run: RunFolder, step: int, dispatcher: Dispatcher) -> None:
    """Restore what `capture` took.

    Raises `FileNotFoundError` without a checkpoint and `ValueError` when it belongs to other sources.
    """
    path = run.orchestrator_checkpoint(step)
    if not path.is_file():
        raise FileNotFoundError(
            f"no orchestrator checkpoint at {path}; resume from a step that has one: {run.checkpoints()}"
        )
    state: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    names = {env.name for env in dispatcher.envs}
    if names != state["envs"].keys():
        raise ValueError(
            f"{path} belongs to the training sources {sorted(state['envs'])}, the config has "
            f"{sorted(names)}; resume with the sources that the run was started with"
        )
    if state["seed"] != dispatcher.seed:
        logger.warning(
            "the run was started with seed %d and goes on with seed %d: what it dispatches next is not what the "
            "undisturbed run would have",
            state["seed"],
            dispatcher.seed,
        )
    for env in dispatcher.envs:
        _load_env_state(env, state["envs"][env.name])
    dispatcher.load_state_dict(state["dispatcher"])


def _env_state(env: TrainEnv) -> dict[str, Any]:
    return {
        "algorithm": env.algorithm.state_dict(),
        "curriculum": env.curriculum.state_dict(),
        "yields": msgspec.to_builtins(env.yields),
    }


def _load_env_state(env: TrainEnv, state: dict[str, Any]) -> None:
    env.algorithm.load_state_dict(state["algorithm"])
    env.curriculum.load_state_dict(state["curriculum"])
    env.yields = msgspec.convert(state["yields"], type(env.yields))
