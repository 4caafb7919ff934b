"""Conversion of Python values to the config of a run."""

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
"""Path of a TOML or YAML file, a mapping with the content of such a file, or the typed config."""


@dataclass
class LoadedConfig:
    """Config, and the environments that must be written to its run folder before it can run."""

    config: RLConfig
    environments: list[Environment] = field(default_factory=list)

    def write(self, run: RunFolder) -> None:
        """Write every environment to the path that the config refers to."""
        for number, each in enumerate(self.environments):
            each.write(run.environment(number))


def read(config: Config) -> LoadedConfig:
    """Return the typed config, with each `Environment` replaced by its config block.

    Raises `ConfigError` or `ConfigErrors`.
    """
    if isinstance(config, RLConfig):
        return LoadedConfig(config)
    if not isinstance(config, Mapping):
        return LoadedConfig(load_config(RLConfig, ["@", os.fspath(config)]))
    folder = Path(config.get("output_dir", RLConfig.model_fields["output_dir"].default)).absolute()
    environments: list[Environment] = []
    plain = _plain(config, RunFolder(folder), environments)
    for each in environments:
        each.pickled()  # raises for rewards that cannot be pickled, before anything is written
    try:
        return LoadedConfig(RLConfig.model_validate(plain), environments)
    except ValidationError as error:
        raise ConfigErrors(list(explain(RLConfig, error, []))) from None


def _plain(value: Any, run: RunFolder, environments: list[Environment]) -> Any:
    """Return `value` as plain config data. Environments are added to `environments`, each once."""
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
