"""Evaluation without a run: the same evaluator and gateway, over a server that is there."""

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
    """The evaluator of `config.eval` on the servers at `config.client`, which call the model `model`.

    A server with the route for token ids gets what the run's renderer makes of messages; any other gets the messages.
    Raises `ReplicaError` where the servers do not answer or have no such model, `ConfigError` for tasks or a renderer
    that cannot be used.
    """
    key = read_api_key(config.client.api_key_var, "client")
    most = config.gateway.max_inflight_per_replica
    replicas = Replicas(config.client.base_url, live=False, headers=bearer(key), max_inflight=most)
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
        except ValueError as error:  # a taskset without tasks, or without an end
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
