"""What echo predicts of the environment's messages, beside the algorithm's own keys."""

from typing import Any

from pydantic import Field

from braidrl.configs.base import BaseConfig


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
