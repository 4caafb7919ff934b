"""User functions: found without running their modules, and loaded."""

import sys
from pathlib import Path

import pytest

from braidrl.cli import main
from braidrl.configs.core.errors import ConfigError
from braidrl.configs.rl import RLConfig
from braidrl.utils.functions import check_functions, find_function, load_function

MODULE = """
raise SystemExit("this module must not run")
import numpy as borrowed
from os.path import join as joined

class Group:
    def method(self): ...

if True:
    def sometimes(): ...

made = lambda inputs: inputs

async def later(): ...
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current directory that is not on the Python path, as for the console script `braid`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "parts" / "inner").mkdir(parents=True)
    (tmp_path / "parts" / "__init__.py").write_text("1 / 0")
    (tmp_path / "parts" / "inner" / "leaf.py").write_text("def f(): ...")
    (tmp_path / "starred.py").write_text("from numpy import *")
    (tmp_path / "lazy.py").write_text("def __getattr__(name): ...")
    (tmp_path / "broken.py").write_text("def f(:\n    ...")
    return tmp_path


@pytest.mark.parametrize(
    "path",
    [
        *(
            f"mine.{name}"
            for name in ("borrowed", "joined", "Group", "Group.method", "sometimes", "made", "later")
        ),
        *("mine:made", "mine.py:made", "parts.inner.leaf.f", "parts.inner.leaf:f", "./parts/inner/leaf.py:f"),
        *("starred.zeros", "lazy.anything", "math.sqrt", "sys.exit", "braidrl.trainer.rl.losses.ce.ce_loss"),
    ],
)
def test_what_is_there_is_found_and_nothing_runs(here: Path, path: str) -> None:
    find_function(path)
    assert not {"mine", "parts", "starred", "lazy"} & set(sys.modules)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.f", "there is no module 'nowhere' in {here} or on the Python path; run from the folder"),
        ("mine.mode", "mine.py does not define 'mode'; did you mean 'made'?"),
        ("mine.method", "mine.py does not define 'method'"),
        ("mine.SystemExit", "does not define 'SystemExit'"),
        ("mine.py:making", "mine.py does not define 'making'"),
        ("nothing.py:f", "there is no file {here}/nothing.py"),
        ("parts.inner", "'parts.inner' is a module; name a function in it"),
        ("parts.inner.f", "there is no module 'f' in parts.inner"),
        ("parts.outer.f", "__init__.py does not define 'outer'"),
        ("broken.f", "broken.py, line 1: "),
    ],
)
def test_what_is_not_there_is_one_clear_error(here: Path, path: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        find_function(path)
    assert message.format(here=here) in str(caught.value)


def test_a_function_of_the_current_directory_is_loaded(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "own_module", raising=False)
    (here / "own_module.py").write_text("def f(): return 3\nnumber = 3")
    assert load_function("own_module.f")() == load_function("own_module.py:f")() == 3
    for path, message in (
        ("own_module.number", "is 3; a callable is required"),
        ("own_module.g", "cannot be imported: .*has no attribute 'g'"),
        ("own_module_2.g", f"No module named 'own_module_2'; give my_module.function of a module in {here}"),
    ):
        with pytest.raises(ValueError, match=message):
            load_function(path)
    monkeypatch.delitem(sys.modules, "own_module")


RUN = """
[model]
path = "m"

[trainer.loss]
type = "custom"
import_path = "mine.made"

[[orchestrator.train.source]]
env.taskset.id = "reverse-text"

[orchestrator.train.source.algo]
type = "echo"
filter.import_path = "mine.later"
"""


def test_a_run_refuses_a_function_that_is_missing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes before anything starts and contains the key, in every block that names a function."""
    (here / "run.toml").write_text(RUN)
    assert main(["rl", "@", "run.toml", "--dry-run"]) == 0
    assert main(["rl", "@", "run.toml", "--dry-run", "--trainer.loss.import_path", "mine.mode"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("braid rl: error: trainer.loss.import_path: 'mine.mode': ")
    assert error.count("\n") == 1
    (here / "run.toml").write_text(RUN.replace("mine.later", "mine.never"))
    assert main(["rl", "@", "run.toml", "--dry-run"]) == 2
    assert "orchestrator.train.source[0].algo.filter.import_path: 'mine.never'" in capsys.readouterr().err
    command = ["trainer", "--model.path", "m", "--loss.type", "custom", "--loss.import_path"]
    assert main([*command, "mine.never", "--dry-run"]) == 2
    assert "braid trainer: error: loss.import_path: 'mine.never'" in capsys.readouterr().err


def test_the_path_of_the_key_is_the_whole_one(here: Path) -> None:
    config = {
        "model": {"path": "m"},
        "orchestrator": {"train": {"source": [{"env": {"taskset": {"id": "x"}}}]}},
    }
    config["trainer"] = {"loss": {"type": "custom", "import_path": "mine.never"}}
    with pytest.raises(ConfigError, match=r"^run\.trainer\.loss\.import_path: "):
        check_functions(RLConfig.model_validate(config), "run.")
