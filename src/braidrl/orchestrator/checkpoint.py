"""The orchestrator's half of a checkpoint: all state that determines which work is dispatched next."""

import logging
from typing import Any

import msgspec

from braidrl.orchestrator.envs.source import TrainEnv
from braidrl.orchestrator.pipeline.dispatcher import Dispatcher
from braidrl.utils.publish import publish_bytes
from braidrl.utils.run_folder import RunFolder

logger = logging.getLogger(__name__)


def capture(step: int, dispatcher: Dispatcher) -> bytes:
    """Return the encoded state at the moment the batch of `step` is complete."""
    state = {
        "step": step,
        "seed": dispatcher.seed,
        "dispatcher": dispatcher.state_dict(),
        "envs": {env.name: _env_state(env) for env in dispatcher.envs},
    }
    return msgspec.json.encode(state)


def save(run: RunFolder, step: int, state: bytes) -> None:
    """Publish the state returned by `capture`.

    Call it only after the records and metrics of the step have been written: a run resumed from this checkpoint does
    not write them again.
    """
    publish_bytes(run.orchestrator_checkpoint(step), state)


def load(run: RunFolder, step: int, dispatcher: Dispatcher) -> None:
    """Restore the state saved after `step`.

    Raises `FileNotFoundError` if there is no checkpoint and `ValueError` if it was written with other training sources.
    """
    path = run.orchestrator_checkpoint(step)
    if not path.is_file():
        raise FileNotFoundError(
            f"cannot resume after step {step}: there is no orchestrator checkpoint at {path}; resume from one of the "
            f"complete checkpoints: {run.checkpoints()}"
        )
    state: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    names = {env.name for env in dispatcher.envs}
    if names != state["envs"].keys():
        raise ValueError(
            f"cannot resume from {path}: it was written with the training sources {sorted(state['envs'])}, the config "
            f"has {sorted(names)}; resume with the sources the run was started with"
        )
    if state["seed"] != dispatcher.seed:
        logger.warning(
            "the checkpoint was written with seed %d, the run resumes with seed %d: the tasks and samples that follow "
            "differ from those of an uninterrupted run; set seed = %d to reproduce it",
            state["seed"],
            dispatcher.seed,
            state["seed"],
        )
    for env in dispatcher.envs:
        _load_env_state(env, state["envs"][env.name])
    dispatcher.load_state_dict(state["dispatcher"])


def _env_state(env: TrainEnv) -> dict[str, Any]:
    return {
        "algorithm": env.algorithm.state_dict(),
        "curriculum": env.curriculum.state_dict(),
        "yields": msgspec.to_builtins(env.yield_estimate),
    }


def _load_env_state(env: TrainEnv, state: dict[str, Any]) -> None:
    env.algorithm.load_state_dict(state["algorithm"])
    env.curriculum.load_state_dict(state["curriculum"])
    env.yield_estimate = msgspec.convert(state["yields"], type(env.yield_estimate))
