"""Renderers built from the `renderer` config block."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from renderers import create_renderer
from renderers.base import RENDERER_REGISTRY, _populate_registry
from renderers.configs import AutoRendererConfig
from tokenizers import AddedToken

from braidrl.cli import main
from braidrl.configs.core.errors import ConfigError
from braidrl.configs.model import RendererConfig
from braidrl.configs.sft import SFTConfig
from braidrl.trainer.sft.data import Demonstrations
from braidrl.utils.renderer import load_renderer, renderer_options
from braidrl.utils.tiny_model import byte_tokenizer
from tests.support.paths import EXAMPLES

CUSTOM = """
from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer


class UndeclaredTools(Qwen3Renderer):
    config_class = Qwen3RendererConfig

    def render(self, messages, *, tools=None, add_generation_prompt=False):
        return super().render(messages, add_generation_prompt=add_generation_prompt)


class Untyped(Qwen3Renderer):
    pass
"""
MESSAGES = [{"role": "user", "content": "What is in c?"}]
TOOL = {
    "type": "function",
    "function": {"name": "sh", "description": "Run.", "parameters": {"type": "object"}},
}
_populate_registry()
FAMILIES = sorted(RENDERER_REGISTRY)
DOWNLOADS = {"gpt-oss"}
"""Families that download their own vocabulary."""
WITHOUT_BRIDGE = {"default", "deepseek-r1"}
"""Families whose turns cannot be extended: an unknown template, and one that strips all earlier thinking."""


def custom(import_path: str, **options: Any) -> RendererConfig:
    return RendererConfig(name="custom", import_path=import_path, **options)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """User module in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(".")  # restores sys.path after the test
    path = tmp_path / f"renderer_of_{tmp_path.name}.py"
    path.write_text(CUSTOM)
    return path


@pytest.mark.parametrize("form", ["file", "relative file", "module"])
def test_a_custom_renderer_is_found_by_its_path_and_takes_its_options(
    tiny_model_dir: Path, module: Path, form: str
) -> None:
    paths = {"file": f"{module}:", "relative file": f"{module.name}:", "module": f"{module.stem}."}
    renderer = load_renderer(
        str(tiny_model_dir), custom(f"{paths[form]}UndeclaredTools", enable_thinking=False)
    )
    qwen3 = load_renderer(str(tiny_model_dir), RendererConfig(name="qwen3", enable_thinking=False))
    prompt = renderer.render_ids(MESSAGES, tools=[TOOL], add_generation_prompt=True)
    assert prompt == qwen3.render_ids(MESSAGES, add_generation_prompt=True)
    assert len(prompt) < len(qwen3.render_ids(MESSAGES, tools=[TOOL], add_generation_prompt=True)) - 300


def test_demonstrations_are_rendered_by_it_too(tiny_model_dir: Path, module: Path) -> None:
    block = {"name": "custom", "import_path": f"{module}:UndeclaredTools", "enable_thinking": False}
    config = SFTConfig.model_validate(
        {
            "model": {"path": str(tiny_model_dir)},
            "data": {"taskset": {"id": "terminal", "num_tasks": 1}},
            "renderer": block,
        }
    )
    (ours,) = Demonstrations(config, load_renderer(config.model.path, config.renderer)).next_batch()[:1]
    plain = config.model_copy(update={"renderer": RendererConfig(name="qwen3", enable_thinking=False)})
    (declared,) = Demonstrations(plain, load_renderer(plain.model.path, plain.renderer)).next_batch()[:1]
    assert ours.ce_weights.sum() == declared.ce_weights.sum() > 0
    assert len(ours.token_ids) < len(declared.token_ids) - 300


def permissive_tokenizer() -> Any:
    """Return a byte tokenizer that adds any control token on look-up or, for DeepSeek's tokens, on encoding."""
    tokenizer = byte_tokenizer()
    known, plain = tokenizer.convert_tokens_to_ids, tokenizer.encode

    def find(text: Any) -> Any:
        if isinstance(text, str) and known(text) is None:
            tokenizer.add_tokens([AddedToken(text, special=True, normalized=False)])
        return known(text)

    def encode(text: str, **options: Any) -> list[int]:
        for control in re.findall("<｜[^｜]+｜>|｜DSML｜", text):
            find(control)
        return plain(text, **options)

    tokenizer.convert_tokens_to_ids, tokenizer.encode = find, encode
    return tokenizer


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - DOWNLOADS))
def test_a_bridge_of_every_family_begins_with_the_tokens_that_were_sampled(family: str) -> None:
    tokenizer = permissive_tokenizer()
    renderer = create_renderer(tokenizer, renderer_options(RendererConfig(name=family)))
    prompt = renderer.render_ids(MESSAGES, add_generation_prompt=True)
    reply = tokenizer.encode("Hm.</think>Tea.", add_special_tokens=False)
    completion = [*reply, renderer.get_stop_token_ids()[0]]
    tails = (
        [{"role": "tool", "tool_call_id": "c", "name": "sh", "content": "tea"}],
        [{"role": "user", "content": "x"}],
    )
    bridges = [renderer.bridge_to_next_turn(prompt, completion, tail) for tail in tails]
    built = [bridge.token_ids for bridge in bridges if bridge is not None]
    assert bool(built) == (family not in WITHOUT_BRIDGE)
    for token_ids in built:
        assert token_ids[: len(prompt + completion)] == prompt + completion
        assert len(token_ids) > len(prompt + completion)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_known_by_its_name(family: str) -> None:
    assert renderer_options(RendererConfig(name=family)).name == family


def test_auto_goes_by_the_name_of_the_tokenizer(
    tiny_model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert renderer_options(RendererConfig()) is None
    kept = renderer_options(RendererConfig(thinking_retention="all"))
    assert kept == AutoRendererConfig(thinking_retention="all")
    tokenizer = byte_tokenizer()
    tokenizer.name_or_path = "Qwen/Qwen3-0.6B"
    renderer = create_renderer(tokenizer, kept)
    assert type(renderer).__name__ == "Qwen3Renderer"
    assert renderer.effective_thinking_retention == "all"
    with caplog.at_level(logging.WARNING):
        load_renderer(str(tiny_model_dir), RendererConfig(name="default"))
        assert not caplog.records
        load_renderer(str(tiny_model_dir), RendererConfig())
    assert "Set renderer.name to the model's family" in caplog.text


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (RendererConfig(name="qwen4"), r"x\.name: there is no renderer 'qwen4'; .*did you mean 'qwen3'"),
        (RendererConfig(enable_thinking=False), r"x: .* need a renderer name"),
        (RendererConfig(name="qwen3", enable_thinkin=False), r"x\.enable_thinkin: .*options are enable_thinking, th"),
        (RendererConfig(name="qwen3", enable_thinking="maybe"), r"x\.enable_thinking: .*boolean"),
        (custom("examples/nothing.py:Renderer"), r"x\.import_path: .*nothing\.py.* does not exist"),
        (custom("no_such_module.Renderer"), r"x\.import_path: 'no_such_module.Renderer' .*No module"),
        (custom("renderers.qwen3.NoSuchClass"), r"x: .* no attribute 'NoSuchClass'"),
        (custom("renderers.qwen3.Qwen3Renderer"), r"x\.import_path: .*must set config_class"),
        (custom("Renderer"), r"x: .* must look like"),
    ],
)  # fmt: skip
def test_a_renderer_that_is_not_there_is_refused(config: RendererConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        renderer_options(config, "x")


def test_the_custom_class_checks_its_options(module: Path) -> None:
    with pytest.raises(ConfigError, match="color"):
        renderer_options(custom(f"{module}:UndeclaredTools", color="red"))


def test_a_module_that_raises_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match=r"broken\.py:Renderer' cannot be imported: ZeroDivisionError"):
        renderer_options(custom(f"{tmp_path}/broken.py:Renderer"))


@pytest.mark.parametrize("block", [{"name": "custom"}, {"name": "qwen3", "import_path": "my_module.Class"}])
def test_a_class_and_the_name_custom_go_together(block: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"import_path = .* are incompatible.*name = \"custom\""):
        RendererConfig.model_validate(block)


def test_a_tokenizer_of_another_family_is_refused(tiny_model_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"'glm-5' does not fit the tokenizer of .*set renderer\.name"):
        load_renderer(str(tiny_model_dir), RendererConfig(name="glm-5"))


def test_a_run_refuses_it_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = EXAMPLES / "grpo" / "rl.toml"
    assert main(["rl", "@", str(recipe), "--orchestrator.renderer.name", "qwen4", "--dry-run"]) == 2
    assert "orchestrator.renderer.name: there is no renderer 'qwen4'" in capsys.readouterr().err
