"""ECHO: GRPO plus cross-entropy on messages of the environment."""

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from braidrl.configs.algorithm.group import GroupRelativeConfig
from braidrl.configs.core.base import BaseConfig


class EchoRoleConfig(BaseConfig):
    """A message role to predict."""

    alpha: float = Field(gt=0)
    """Weight of the role's tokens in the ce component (ECHO's lambda)."""


class EchoRolesConfig(BaseConfig):
    """Roles of the environment's messages to predict, each with its own weight."""

    tool: EchoRoleConfig | None = None
    """Weight of tool responses."""
    user: EchoRoleConfig | None = None
    """Weight of user messages after the first answer."""
    system: EchoRoleConfig | None = None
    """Weight of system messages after the first answer."""
    assistant: EchoRoleConfig | None = None
    """Weight of assistant messages that the policy did not sample."""

    @property
    def alphas(self) -> dict[str, float]:
        """Weights by role."""
        roles = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: role.alpha for name, role in roles.items() if role is not None}


class EchoFilterConfig(BaseConfig):
    """User function that selects among the predicted tokens."""

    import_path: str
    """Import path `my_module.function`. Called with a trace, it returns a mask of the tokens to keep for each trainable
    branch, in order."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function."""


class EchoConfig(GroupRelativeConfig):
    """ECHO: GRPO on sampled tokens, plus cross-entropy on the environment's answers."""

    paper: ClassVar[str] = "ECHO"

    type: Literal["echo"] = "echo"
    roles: EchoRolesConfig = Field(
        default_factory=lambda: EchoRolesConfig(tool=EchoRoleConfig(alpha=0.1)),
    )
    """Roles to predict. By default only `tool`, with weight 0.1. Setting any role replaces the whole table."""
    filter: EchoFilterConfig | None = None
    """Filter of the predicted tokens. None: all tokens of the roles."""

    @field_validator("roles")
    @classmethod
    def _check_roles(cls, value: EchoRolesConfig) -> EchoRolesConfig:
        if not value.alphas:
            raise ValueError(
                'no role has a weight, so no message would be predicted; set roles.tool.alpha, or use type = "grpo"'
            )
        return value
