"""Documents: links and commands exist, config blocks validate, and Python blocks run."""

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from braidrl.cli import COMMANDS
from braidrl.configs.algorithm import EchoConfig
from braidrl.configs.core.inherit import inherit
from braidrl.configs.core.load import load_config
from braidrl.configs.inference import InferenceConfig
from braidrl.configs.plugins import ALGORITHM, GATE, LOSS, SAMPLER
from braidrl.configs.rl import RLConfig
from braidrl.configs.sft import SFTConfig
from braidrl.entrypoints.schema import config_class
from braidrl.launch.run import resolve
from braidrl.orchestrator.train.algo import make_algorithm
from tests.support.documents import BLOCKS, DOCUMENTS, READERS, REPOSITORY, Block, blocks_of, name_of
from tests.support.episodes import episode, trace
from tests.support.shell_lines import SHELLS

BASE = {
    "model": {"path": "model"},
    "orchestrator": {"train": {"source": [{"env": {"taskset": {"id": "reverse-text"}}}]}},
}
KINDS = {kind.group: kind for kind in (ALGORITHM, LOSS, SAMPLER, GATE)}
EXTRAS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PLAIN = ("text", "nginx")
"""Languages of blocks that are neither config nor code: output, diagrams, and proxy configs, which test_gateway_tls
tests."""
ELSEWHERE = {
    "docs/extending.md": ("braid_bounded", "a package that is written and tested by `braid new-algorithm`")
}
"""Module that a document imports and that is not installed here, and the reason."""


def test_every_field_case_has_the_tests_that_it_names() -> None:
    named = set(re.findall(r"`(test_\w+)`", (REPOSITORY / "docs" / "field_cases.md").read_text()))
    sources = "\n".join(path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert len(named) > 40
    assert {name for name in named if f"def {name}(" not in sources} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_and_commands_of_a_document_exist(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
        assert (document.parent / target).exists(), target
    for command in re.findall(
        r"(?:^\s*(?:\$ |\.venv/bin/)?|`)braid ([a-z][a-z-]*)", text, flags=re.MULTILINE
    ):
        assert command in COMMANDS, command
    for extras in re.findall(r"\bbraidrl\[([\w,-]+)\]", text):
        assert {*extras.split(",")} <= EXTRAS.keys(), extras


def test_every_block_is_of_a_kind_that_a_test_looks_at() -> None:
    """Shell blocks are tested in `test_docs_commands`."""
    kinds = {*READERS, *SHELLS, *PLAIN, "python"}
    fences = [re.findall(r"^ *(?:```|~~~)", document.read_text(), re.MULTILINE) for document in DOCUMENTS]
    assert sum(map(len, fences)) == 2 * len(BLOCKS)
    assert [block.place for block in BLOCKS if block.language not in kinds] == []
    for block in BLOCKS:
        if block.language in PLAIN:  # config and commands must not be marked as text
            assert not re.search(
                r"^(?:braid [a-z-]+ |pip |python |\[\[?[\w.]+\]\]?$)", block.text, re.MULTILINE
            ), block.place


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A reader's working folder, also on the Python path. Runs started from Python start no processes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("braidrl.api.runs.launch_run", lambda *_: None)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_python_runs_and_configuration_resolves(document: Path, folder: Path) -> None:
    """Python blocks with a file name (`# my_module.py`) become modules, which config blocks may import."""
    names: dict[str, Any] = {"__name__": "document"}
    for block in blocks_of(document):
        if block.language == "python":
            run_python(block, names, folder)
    for block in blocks_of(document):
        if block.language in READERS:
            check_config(block)


def run_python(block: Block, names: dict[str, Any], folder: Path) -> None:
    """Execute a block with the names defined by earlier blocks."""
    if block.file is not None:
        (folder / block.file).write_text(block.text)
    lacking, _ = ELSEWHERE.get(name_of(block.document), ("", ""))
    try:
        exec(compile(block.text, block.place, "exec"), names)
    except ModuleNotFoundError as error:
        assert error.name is not None and error.name.partition(".")[0] == lacking, block.place


def check_config(block: Block) -> None:
    """Validate a block like the command that reads it."""
    if "project" in block.data:
        check_entry_points(block, block.data["project"]["entry-points"])
    elif block.command == "rl":
        resolve(RLConfig.model_validate(inherit(BASE, block.data)))
    else:
        config_class(block.command).model_validate(block.data)


def check_entry_points(block: Block, groups: dict[str, dict[str, str]]) -> None:
    """Assert that entry point groups are Braid's, and that the document defines the classes."""
    for group, entries in groups.items():
        assert group in KINDS, block.place
        for name, value in entries.items():
            target = EntryPoint(name, value, group).attr
            assert f"class {target}({KINDS[group].base.__name__})" in block.document.read_text(), block.place


async def test_the_filter_of_echo_drops_what_it_says(folder: Path) -> None:
    (written,) = re.findall(
        r"```python\n(# my_module.py\n.*?)```", (REPOSITORY / "docs/algorithms.md").read_text(), re.DOTALL
    )
    (folder / "my_module.py").write_text(written)
    filtering = {"import_path": "my_module.drop_warnings", "kwargs": {"patterns": ["WARNING"]}}
    item = trace(roles=[("user", 2), ("assistant", 1), ("tool", 2), ("assistant", 1), ("tool", 3)])
    item.nodes[2].message.content = "WARNING: deprecated"
    await make_algorithm(EchoConfig.model_validate({"filter": filtering})).finalize_episode(episode(item))
    assert item.branches[0].loss_weights("ce") == [0, 0, 0, 0, 0, 0, 0.1, 0.1, 0.1]


@pytest.mark.parametrize(
    "recipe", sorted(REPOSITORY.glob("examples/*/*.toml")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_recipe_loads(recipe: Path) -> None:
    """`sft*.toml` is for `braid sft`, `*teacher*.toml` for `braid inference`, and all others for `braid rl`. A file
    without a model overrides `rl.toml`."""
    kinds = {"sft": SFTConfig, "teacher": InferenceConfig}
    cls = next((cls for kind, cls in kinds.items() if kind in recipe.stem), RLConfig)
    alone = "model" in tomllib.loads(recipe.read_text())
    files = [recipe] if alone else [recipe.with_name("rl.toml"), recipe]
    config = load_config(cls, [word for path in files for word in ("@", str(path))])
    assert config.model.path.startswith(("outputs/", "models/"))
