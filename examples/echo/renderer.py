"""Qwen3's layout without tool declarations: they would be most of an episode's tokens, one a byte."""

from typing import Any

from renderers import Message, RenderedTokens
from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer


class UndeclaredTools(Qwen3Renderer):
    """For a model that has one tool and learns from its warm-up how to call it."""

    config_class = Qwen3RendererConfig

    def render(
        self, messages: list[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        """As Qwen3, whatever `tools` are declared."""
        return super().render(messages, add_generation_prompt=add_generation_prompt)
