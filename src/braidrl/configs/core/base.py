"""Strict base class of all configs: unknown keys, infinities and NaN are errors."""

from typing import Any

from pydantic import ConfigDict
from pydantic_config import BaseConfig as _BaseConfig

EnvBlock = dict[str, Any]
"""A verifiers environment block. It is validated by the environment's own config class after all of Braid's keys,
because that requires importing verifiers (`braidrl.configs.environment`)."""


class BaseConfig(_BaseConfig):
    """Base class of all config blocks. The docstring of a field is its description in `--help` and the docs."""

    model_config = ConfigDict(
        extra="forbid", allow_inf_nan=False, validate_default=True, use_attribute_docstrings=True
    )
