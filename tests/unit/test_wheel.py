"""The wheel contains all files that an installed Braid needs: code, report page, templates, recipe and environments."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.wheel import build_wheel

LOOK = """
from braidrl.cli import main
from braidrl.entrypoints.quickstart import recipe_folder
from braidrl.report.page.html import HERE, modules

assert modules() and (HERE / "static" / "page.html").is_file() and (HERE / "vendor" / "vendor.toml").is_file()
assert main(["new-algorithm", "mine", "--folder", "made"]) == 0
print(HERE, recipe_folder(), sep="\\n")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def files_of(folder: Path, names: Path) -> set[str]:
    """Return the names of all files in a folder, relative to `names`, as in a wheel."""
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(names).as_posix() for path in found}


def test_every_file_of_the_package_and_of_the_environments_is_in_the_wheel(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    expected = files_of(REPOSITORY / "src" / "braidrl", REPOSITORY / "src")
    for package in (REPOSITORY / "environments").glob("*/__init__.py"):
        expected |= files_of(package.parent, REPOSITORY / "environments")
    recipe = REPOSITORY / "examples" / "grpo"
    expected |= {f"braidrl/examples/grpo/{name}" for name in files_of(recipe, recipe)}
    assert "braidrl/report/page/vendor/vendor.toml" in expected
    assert expected <= held, sorted(expected - held)


def test_what_is_installed_finds_its_files(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, cwd=tmp_path, env=env, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [
        str(site / "braidrl" / "report" / "page"),
        str(site / "braidrl" / "examples" / "grpo"),
    ]
