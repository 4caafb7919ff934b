"""From what Python gives to the config of a run."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from braidrl.api.prompts import Environment
from braidrl.configs.core.errors import ConfigErrors
from braidrl.configs.core.faults import explain
from braidrl.configs.core.load import load_config
from braidrl.configs.rl import RLConfig
from braidrl.utils.run_folder import RunFolder

Config = str | os.PathLike[str] | Mapping[str, Any] | RLConfig
"""A TOML or YAML file, what such a file holds, or the typed config."""


@dataclass
class LoadedConfig:
    """A config, and the environments in it that have yet to be written into its run folder."""

    config: RLConfig
    environments: list[Environment] = field(default_factory=list)

    def write(self, run: RunFolder) -> None:
        """Put every environment where the config says it is."""
        for number, each in enumerate(self.environments):
            each.write(run.environment(number))


def read(config: Config) -> LoadedConfig:
    """The typed config, environments replaced by their blocks. Raises `ConfigError` or `ConfigErrors`."""
    if isinstance(config, RLConfig):
        return LoadedConfig(config)
    if not isinstance(config, Mapping):
        return LoadedConfig(load_config(RLConfig, ["@", os.fspath(config)]))
    folder = Path(config.get("output_dir", RLConfig.model_fields["output_dir"].default)).absolute()
    environments: list[Environment] = []
    plain = _plain(config, RunFolder(folder), environments)
    for each in environments:
        each.pickled()  # what cannot travel is found before a folder is touched
    try:
        return LoadedConfig(RLConfig.model_validate(plain), environments)
    except ValidationError as error:
        raise ConfigErrors(list(explain(RLConfig, error, []))) from None


def _plain(value: Any, run: RunFolder, environments: list[Environment]) -> Any:
    """A value as a file could hold it; environments are collected, each once."""
    if isinstance(value, Environment):
        if value not in environments:
            environments.append(value)
        return value.block(run.environment(environments.index(value)))
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {key: _plain(item, run, environments) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, run, environments) for item in value]
    return value
