"""Last step of loading a configuration: environment blocks are validated by verifiers, and sources get names."""

from typing import Any

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.environment import agents_of, resolve_env
from braidrl.configs.eval import EvalSourceConfig
from braidrl.configs.model import check_unbent
from braidrl.configs.orchestrator import OrchestratorConfig, TrainSourceConfig


def resolve_environments(config: OrchestratorConfig, prefix: str = "") -> None:
    """Replace the environment blocks of `config` in place by their complete, validated form, and name the sources.

    Imports verifiers. Raises `ConfigError` with paths that start with `prefix` (`orchestrator.` in a run's config).
    """
    resolve_sources(config.train.source, f"{prefix}train.source")
    resolve_sources(config.eval.source, f"{prefix}eval.source")


def resolve_sources(sources: list[TrainSourceConfig] | list[EvalSourceConfig], path: str) -> None:
    """Resolve the environment blocks of `sources` in place and name the sources. `path` is their path in errors."""
    taken: dict[str, int] = {}
    for index, source in enumerate(sources):
        env = resolve_env(source.env, f"{path}[{index}].env")
        source.env = env.model_dump(mode="json", exclude_none=True)
        source.name = source.name or env.env_id
        if isinstance(source, TrainSourceConfig):
            _check_algorithm(source, agents_of(env), f"{path}[{index}].algo")
            _check_sampling(source.env, agents_of(env), f"{path}[{index}].env")
        if source.name in taken:
            raise ConfigError(
                f"{path}[{index}].name",
                f"{source.name!r} is already the name of source {taken[source.name]}; give each source a unique name",
            )
        taken[source.name] = index


def _check_sampling(block: dict[str, Any], agents: list[str], path: str) -> None:
    """Raise `ConfigError` if a single agent is sampled from a distribution that the trainer cannot reproduce.

    A multi-agent environment decides at run time which agents train, so there the gateway checks each call.
    """
    if len(agents) != 1:
        return
    agent = block.get(agents[0]) or {}
    try:
        check_unbent(agent.get("sampling") or {})
    except ValueError as error:
        raise ConfigError(f"{path}.{agents[0]}.sampling", str(error)) from None


def _check_algorithm(source: TrainSourceConfig, agents: list[str], path: str) -> None:
    try:
        source.algo.check_agents(agents)
    except ValueError as error:
        raise ConfigError(path, str(error)) from None
