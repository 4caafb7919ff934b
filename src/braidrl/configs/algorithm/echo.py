"""ECHO: GRPO, and cross-entropy on messages of the environment."""

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from braidrl.configs.algorithm.group import GroupRelativeConfig
from braidrl.configs.core.base import BaseConfig


class EchoRoleConfig(BaseConfig):
    """One role whose messages are predicted."""

    alpha: float = Field(gt=0)
    """Weight of its tokens in the ce component (ECHO's lambda)."""


class EchoRolesConfig(BaseConfig):
    """Which messages of the environment are predicted, each role at its own weight."""

    tool: EchoRoleConfig | None = None
    """Tool responses."""
    user: EchoRoleConfig | None = None
    """User turns after the first answer."""
    system: EchoRoleConfig | None = None
    """System messages after the first answer."""
    assistant: EchoRoleConfig | None = None
    """Assistant messages that the policy did not sample."""

    @property
    def alphas(self) -> dict[str, float]:
        """Weight by role."""
        roles = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: role.alpha for name, role in roles.items() if role is not None}


class EchoFilterConfig(BaseConfig):
    """A function of the user's that narrows the selection, token by token."""

    import_path: str
    """`my_module.function`: called with the trace, returns one keep-mask per trainable branch, in order."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of every call."""


class EchoConfig(GroupRelativeConfig):
    """ECHO: GRPO on sampled tokens, and cross-entropy on what the environment answers."""

    paper: ClassVar[str] = "ECHO"

    type: Literal["echo"] = "echo"
    roles: EchoRolesConfig = Field(
        default_factory=lambda: EchoRolesConfig(tool=EchoRoleConfig(alpha=0.1)),
    )
    """Predicted roles; setting any replaces the whole table, which is `tool` at 0.1."""
    filter: EchoFilterConfig | None = None
    """Narrows the selection."""

    @field_validator("roles")
    @classmethod
    def _predicts_something(cls, value: EchoRolesConfig) -> EchoRolesConfig:
        if not value.alphas:
            raise ValueError('no role is predicted; set roles.tool.alpha, or use type = "grpo"')
        return value
