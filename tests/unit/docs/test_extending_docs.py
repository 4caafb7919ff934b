"""The example code of docs/extending.md and docs/environments.md."""

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from braidrl.configs.model import RendererConfig
from braidrl.orchestrator.train.algo import make_algorithm
from braidrl.testing import CHECKS
from braidrl.utils.renderer import load_renderer
from tests.support.environments import play
from tests.support.episodes import advantages_of, episode, trace
from tests.support.paths import DOCS
from tests.support.scripted_model import ScriptedModel

TEXT = (DOCS / "extending.md").read_text()


def snippets(text: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def section(title: str, text: str = TEXT) -> str:
    return re.split(r"\n##+ ", text.split(f" {title}\n", 1)[1])[0]


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Config class of the page's example package."""
    config, algorithm = ModuleType("braid_bounded.config"), ModuleType("braid_bounded.algorithm")
    for module in (ModuleType("braid_bounded"), config, algorithm):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(snippets(section("The package"))[0], vars(config))
    exec(snippets(section("The algorithm"))[0], vars(algorithm))
    return config.BoundedConfig


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_algorithm_passes_the_conformance_kit(bounded: Any, check: Callable[..., Any]) -> None:
    check(lambda: make_algorithm(bounded()))


async def test_the_algorithm_does_what_it_says(bounded: Any) -> None:
    group = [episode(trace(reward)) for reward in (1.0, 0.0, 0.0, 0.0)]
    await make_algorithm(bounded(bound=0.5)).score_group(group)
    assert advantages_of(group) == [0.5, -0.25, -0.25, -0.25]


def test_the_checks_of_the_kit_are_those_of_the_table() -> None:
    assert re.findall(r"^\| `(check_\w+)`", TEXT, re.MULTILINE) == [check.__name__ for check in CHECKS]


def test_the_renderer_stamps_every_turn_and_extends_it(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_renderer.py").write_text(snippets(section("A renderer"))[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_renderer", raising=False)
    block = tomllib.loads(snippets(section("A renderer"), "toml")[0])["orchestrator"]["renderer"]
    extends = {"thinking_retention": "all"}
    renderer = load_renderer(str(tiny_model_dir), RendererConfig(**block, **extends))
    qwen3 = load_renderer(str(tiny_model_dir), RendererConfig(name="qwen3", **extends))
    asked, stamped = ([{"role": "user", "content": text}] for text in ("tea?", "> tea?"))
    prompt = renderer.render_ids(asked, add_generation_prompt=True)
    assert prompt == qwen3.render_ids(stamped, add_generation_prompt=True)
    answer = qwen3.render_ids([{"role": "assistant", "content": "no"}])[
        -4:-1
    ]  # including the end of the turn
    bridged = renderer.bridge_to_next_turn(prompt, answer, asked)
    expected = qwen3.bridge_to_next_turn(prompt, answer, stamped)
    assert bridged is not None and expected is not None
    assert bridged.token_ids == expected.token_ids


async def test_the_environment_grades(monkeypatch: pytest.MonkeyPatch) -> None:
    text = section("One of your own", (DOCS / "environments.md").read_text())
    module = ModuleType("my_task")
    monkeypatch.setitem(sys.modules, "my_task", module)
    exec(snippets(text)[0], vars(module))
    env = tomllib.loads(snippets(text, "toml")[0])["orchestrator"]["train"]["source"][0]["env"]
    rewards = [(await play(ScriptedModel(reply), dict(env))).traces[0].reward for reply in ("0", "1")]
    assert rewards == [1.0, 0.0]
