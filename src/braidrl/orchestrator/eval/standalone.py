"""Standalone evaluation of a served model, with the evaluator and gateway of a run."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.orchestrator.engines.pool import ReplicaError, Replicas
from braidrl.orchestrator.envs.source import EvalEnv, FinishedEpisode, warm_renderer
from braidrl.orchestrator.eval.evaluator import Evaluator
from braidrl.orchestrator.gateway.server import Gateway
from braidrl.utils.http import bearer, read_api_key
from braidrl.utils.run_folder import RunFolder


@asynccontextmanager
async def open_evaluation(
    config: OrchestratorConfig, model: str, on_episode: Callable[[EvalEnv, FinishedEpisode], None]
) -> AsyncIterator[Evaluator]:
    """Open an evaluator of `config.eval` on the servers at `config.client`.

    Servers with the route for token ids receive tokens of the configured renderer. Other servers receive messages.

    Args:
        model: name of the model at the servers.
        on_episode: called when an episode ends.

    Raises:
        ReplicaError: a server is not ready in time or does not serve `model`.
        ConfigError: unusable tasks or renderer.
    """
    key = read_api_key(config.client.api_key_var, "client")
    limit = config.gateway.max_inflight_per_replica
    replicas = Replicas(config.client.base_url, live=False, headers=bearer(key), max_inflight=limit)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(replicas.close)
        await replicas.connect(config.client.startup_timeout)
        _check_served(replicas, model)
        if replicas.takes_tokens:
            await warm_renderer(config)
        gateway = Gateway(
            config.gateway, {model: replicas}, seed=config.seed, context=config.seq_len, api_key=key
        )
        await stack.enter_async_context(gateway)
        try:
            envs = [EvalEnv(source, config, gateway, model) for source in config.eval.source]
        except ValueError as error:  # an empty or infinite taskset
            raise ConfigError("source", str(error)) from None
        for env in envs:
            await stack.enter_async_context(env.serving())
        yield Evaluator(
            envs,
            RunFolder(config.output_dir),
            max_concurrent=config.eval.max_concurrent,
            on_episode=on_episode,
        )


def _check_served(replicas: Replicas, model: str) -> None:
    names = [card.get("id") for card in replicas.models]
    if model not in names:
        raise ReplicaError(
            f"{replicas.urls[0]} serves {', '.join(map(repr, names))}, not {model!r}; set client.model to one of them"
        )
