"""Documents are true: what they name exists, and their configuration validates."""

import re
import tomllib
from pathlib import Path

import pytest

from braidrl.cli import COMMANDS
from braidrl.configs.eval_command import EvalCommandConfig
from braidrl.configs.inference import InferenceConfig
from braidrl.configs.inherit import inherit
from braidrl.configs.load import load_config
from braidrl.configs.rl import RLConfig
from braidrl.configs.sft import SFTConfig

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("examples/**/*.md")]
)
BASE = {
    "model": {"path": "model"},
    "orchestrator": {"train": {"source": [{"env": {"taskset": {"id": "reverse-text"}}}]}},
}


def test_every_field_case_has_the_tests_that_it_names() -> None:
    named = set(re.findall(r"`(test_\w+)`", (REPOSITORY / "docs" / "field_cases.md").read_text()))
    sources = "\n".join(path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert len(named) > 40
    assert {name for name in named if f"def {name}(" not in sources} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_and_commands_of_a_document_exist(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
        assert (document.parent / target).exists(), target
    for command in re.findall(r"^\s*(?:\$ |\.venv/bin/)?braid ([a-z-]+)", text, flags=re.MULTILINE):
        assert command in COMMANDS, command


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_toml_of_a_document_validates(document: Path) -> None:
    for block in re.findall(r"```toml\n(.*?)```", document.read_text(), flags=re.DOTALL):
        data = tomllib.loads(block)
        if block.startswith("# eval.toml"):
            EvalCommandConfig.model_validate(data)
        else:
            RLConfig.model_validate(inherit(BASE, data))


@pytest.mark.parametrize(
    "recipe", sorted(REPOSITORY.glob("examples/*/*.toml")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_recipe_loads(recipe: Path) -> None:
    """`sft*.toml` is one for `braid sft`, `*teacher*.toml` for `braid inference`, any other for `braid rl`; one without
    a model is laid over `rl.toml`."""
    kinds = {"sft": SFTConfig, "teacher": InferenceConfig}
    cls = next((cls for kind, cls in kinds.items() if kind in recipe.stem), RLConfig)
    alone = "model" in tomllib.loads(recipe.read_text())
    files = [recipe] if alone else [recipe.with_name("rl.toml"), recipe]
    config = load_config(cls, [word for path in files for word in ("@", str(path))])
    assert config.model.path.startswith(("outputs/", "models/"))
