"""Target of `braid eval`: an existing endpoint, or a policy on disk for which a server is started."""

from dataclasses import dataclass
from pathlib import Path

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.core.inherit import inherit
from braidrl.configs.core.load import load_config
from braidrl.configs.eval import EvalConfig, EvalSettings, EvalSourceConfig
from braidrl.configs.eval_command import SHARED, EvalCommandConfig
from braidrl.configs.orchestrator import ClientConfig, OrchestratorConfig
from braidrl.utils.model_source import ModelSource, find_model
from braidrl.utils.process import free_port
from braidrl.utils.renderer import renderer_options
from braidrl.utils.run_folder import RunFolder

FROM_RUN = ("seq_len", "seed", "renderer")
"""Keys taken from the config of the policy's run if the command does not set them."""


@dataclass(frozen=True)
class Target:
    """Evaluated policy and its endpoints."""

    version: int
    """Step of the policy in its run; 0 if it is not from a run."""
    model: str
    """Model name in requests."""
    base_url: list[str]
    served: bool
    """True if an inference server must be started for it."""
    source: ModelSource | None = None
    """Checkpoint or adapter that must be exported before it can be served; None if no export is needed."""

    def prepare(self, dtype: str) -> None:
        """Export `source` to the model folder, unless that exists. Raises `ConfigError`."""
        if self.source is None or Path(self.model).exists():
            return
        from braidrl.trainer.state.export import export_model

        try:
            export_model(self.source, Path(self.model), dtype)
        except (OSError, ValueError) as error:
            raise ConfigError("model.path", str(error)) from None


def resolve(config: EvalCommandConfig) -> tuple[EvalCommandConfig, Target]:
    """Return the config with resolved model and sources, and the target. Raises `ConfigError`."""
    from braidrl.configs.resolve import resolve_sources

    config = config.model_copy(deep=True)
    target = _endpoint(config) if config.client.base_url else _on_disk(config)
    if not config.source:
        raise ConfigError(
            "source",
            "nothing to evaluate on; add [[source]] with env.taskset.id, or set model.path to a run with eval sources",
        )
    resolve_sources(config.source, "source")
    renderer_options(config.renderer)
    return config, target


def orchestrator_config(config: EvalCommandConfig, target: Target) -> OrchestratorConfig:
    """Return the orchestrator config that corresponds to the command."""
    return OrchestratorConfig(
        model=config.model,
        output_dir=config.output_dir,
        seq_len=config.seq_len,
        seed=config.seed,
        renderer=config.renderer,
        client=ClientConfig(
            base_url=target.base_url,
            api_key_var=config.inference.api_key_var if target.served else config.client.api_key_var,
            startup_timeout=config.client.startup_timeout,
        ),
        gateway=config.gateway,
        eval=EvalConfig(source=config.source, max_concurrent=config.max_concurrent),
    )


def _endpoint(config: EvalCommandConfig) -> Target:
    if config.step is not None:
        raise ConfigError(
            "step", f"is {config.step}, but the endpoint client.base_url serves only one policy; omit step"
        )
    return Target(0, config.client.model or config.model.path, config.client.base_url, served=False)


def _on_disk(config: EvalCommandConfig) -> Target:
    """Return the target of `model.path`. Sets the model folder in the config, and the settings of the policy's run."""
    if config.inference.replicas != 1:
        raise ConfigError(
            "inference.replicas",
            f"is {config.inference.replicas}, but an evaluation starts one server; omit it, or start several `braid "
            "inference` and list their addresses in client.base_url",
        )
    path, source = Path(config.model.path), None
    # Anything else is a hub id: `name` or `organisation/name`.
    if path.is_dir() or path.is_absolute() or len(path.parts) > 2 or config.step is not None:
        try:
            source = find_model(path, config.step)
        except (OSError, ValueError) as error:
            raise ConfigError("model.path", str(error)) from None
        if source.run is not None:
            _inherit_from_run(config, source.run)
        exported = config.output_dir / "models" / f"step_{source.step:06d}"
        published = source.weights if source.adapter is None else None
        config.model.path = str(published or exported)
    for key in SHARED:
        setattr(config.inference, key, getattr(config, key))
    if "port" not in config.inference.model_fields_set:
        config.inference.port = free_port(config.inference.host)
    url = f"http://{config.inference.host}:{config.inference.port}/v1"
    to_export = source if source is not None and (source.weights is None or source.adapter) else None
    return Target(source.step if source else 0, config.model.path, [url], True, to_export)


def _inherit_from_run(config: EvalCommandConfig, run: RunFolder) -> None:
    """Fill unset keys (`FROM_RUN`, model loading and eval sources) from the config of the run."""
    path = run.configs / "orchestrator.toml"
    if not path.is_file():
        return
    known = load_config(OrchestratorConfig, ["@", str(path)])
    for key in FROM_RUN:
        if key not in config.model_fields_set:
            setattr(config, key, getattr(known, key))
    for key in ("dtype", "trust_remote_code"):
        if key not in config.model.model_fields_set:
            setattr(config.model, key, getattr(known.model, key))
    if not config.source:
        given = config.model_dump(exclude_unset=True)
        given = {key: given[key] for key in EvalSettings.model_fields if key in given}
        config.source = [
            EvalSourceConfig.model_validate(inherit(source.model_dump(), given))
            for source in known.eval.source
        ]
