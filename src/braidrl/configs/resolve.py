"""The last step of a configuration: environment blocks checked by verifiers, sources named."""

from typing import Any

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.environment import agents_of, resolve_env
from braidrl.configs.eval import EvalSourceConfig
from braidrl.configs.model import check_unbent
from braidrl.configs.orchestrator import OrchestratorConfig, TrainSourceConfig


def resolve_environments(config: OrchestratorConfig, prefix: str = "") -> None:
    """Replace every environment block of `config`, in place, by its checked and complete form, and name the sources.

    `prefix` leads the paths in errors (`orchestrator.` in a run's config). Imports verifiers. Raises `ConfigError`.
    """
    resolve_sources(config.train.source, f"{prefix}train.source")
    resolve_sources(config.eval.source, f"{prefix}eval.source")


def resolve_sources(sources: list[TrainSourceConfig] | list[EvalSourceConfig], path: str) -> None:
    """The same for the sources that stand at `path`."""
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
                f"{source.name!r} names source {taken[source.name]} already; give each source a name of its own",
            )
        taken[source.name] = index


def _check_sampling(block: dict[str, Any], agents: list[str], path: str) -> None:
    """Refuse an only agent that would not be sampled as the trainer replays it. Of several, the environment says
    while it runs which ones train, and the gateway refuses those."""
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
