"""The strict base of every config: an unknown key is an error, and infinities are not numbers."""

from typing import Any

from pydantic import ConfigDict
from pydantic_config import BaseConfig as _BaseConfig

EnvBlock = dict[str, Any]
"""A verifiers environment block. Braid checks it against the environment's own config class when it loads verifiers
(`braidrl.configs.environment`), after everything that Braid owns has been checked."""


class BaseConfig(_BaseConfig):
    """One block of a run's configuration. Field documentation stands under each field."""

    model_config = ConfigDict(
        extra="forbid", allow_inf_nan=False, validate_default=True, use_attribute_docstrings=True
    )
