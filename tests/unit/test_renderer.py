"""From a renderer block to a renderer."""

from pathlib import Path

import pytest

from braidrl.configs.model import RendererConfig
from braidrl.utils.renderer import load_renderer, renderer_options

CUSTOM = """
from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer


class UndeclaredTools(Qwen3Renderer):
    config_class = Qwen3RendererConfig

    def render(self, messages, *, tools=None, add_generation_prompt=False):
        return super().render(messages, add_generation_prompt=add_generation_prompt)
"""
MESSAGES = [{"role": "user", "content": "What is in c?"}]
TOOL = {
    "type": "function",
    "function": {"name": "sh", "description": "Run.", "parameters": {"type": "object"}},
}


def custom(import_path: str, **options) -> RendererConfig:
    return RendererConfig(name="custom", import_path=import_path, **options)


def test_a_custom_renderer_is_found_by_its_path_and_takes_its_options(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "renderer.py"
    path.write_text(CUSTOM)
    renderer = load_renderer(str(tiny_model_dir), custom(f"{path}:UndeclaredTools", enable_thinking=False))
    qwen3 = load_renderer(str(tiny_model_dir), RendererConfig(name="qwen3", enable_thinking=False))
    prompt = renderer.render_ids(MESSAGES, tools=[TOOL], add_generation_prompt=True)
    assert prompt == qwen3.render_ids(MESSAGES, add_generation_prompt=True)
    assert len(prompt) < len(qwen3.render_ids(MESSAGES, tools=[TOOL], add_generation_prompt=True)) - 300


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (custom("examples/nothing.py:Renderer"), r"nothing\.py"),
        (RendererConfig(name="custom"), "import_path"),
        (RendererConfig(name="qwen4"), "qwen4"),
        (RendererConfig(enable_thinking=False), "need a renderer name"),
    ],
)
def test_a_renderer_that_is_not_there_is_refused(config: RendererConfig, message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        renderer_options(config)
