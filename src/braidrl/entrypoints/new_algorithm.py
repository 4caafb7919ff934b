"""`braid new-algorithm NAME`: create a package with a working algorithm, its config, its tests and a run config."""

import argparse
import keyword
import re
from importlib.resources import files
from pathlib import Path
from string import Template

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.plugins import ALGORITHMS, BUILT_IN

FILES = {
    "algorithm.py": ("$module/algorithm.py", "the algorithm: edit this"),
    "config.py": ("$module/config.py", "parameters and requirements"),
    "init.py": ("$module/__init__.py", ""),
    "test.py": ("tests/test_$name.py", "a worked case and the conformance checks"),
    "rl.toml": ("rl.toml", "config of a run with the algorithm"),
    "README.md": ("README.md", ""),
    "pyproject.toml": ("pyproject.toml", ""),
}
"""Target path and printed description of each template. Files with an empty description are not listed."""


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="braid new-algorithm", description=__doc__)
    parser.add_argument("name", help="`type` of the algorithm: lower-case letters, digits and underscores")
    parser.add_argument("--folder", type=Path, help="folder to create (default: braid-NAME)")
    options = parser.parse_args(args)
    name = options.name.replace("-", "_")
    check_name(name)
    distribution = f"braid-{name.replace('_', '-')}"
    folder = options.folder or Path(distribution)
    written = write_package(folder, name, distribution)
    width = max(map(len, map(str, written)))
    lines = [f"  {str(path).ljust(width)}  {text}" for path, text in written.items() if text]
    steps = (
        f"pip install -e {folder}",
        f"python -m pytest {folder}",
        f"braid rl @ {folder}/rl.toml --dry-run",
    )
    print(
        "\n".join(
            [f"created {folder}, a working package:", *lines, "next steps:", *(f"  {s}" for s in steps)]
        )
    )
    return 0


def check_name(name: str) -> None:
    """Raise `ConfigError` unless `name` may be the `type` of a new algorithm."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            "NAME",
            f"{name!r} is not a valid name; use lower-case letters, digits and underscores, and no Python keyword",
        )
    if (known := ALGORITHMS.get(name)) is not None:
        owner = "braidrl" if known.origin == BUILT_IN else known.origin
        raise ConfigError("NAME", f"{name!r} is already an algorithm of {owner}; choose another name")


def write_package(folder: Path, name: str, distribution: str) -> dict[Path, str]:
    """Fill in the templates and return the written paths, relative to `folder`, with their descriptions.

    Raises `ConfigError` if `folder` exists and is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError("--folder", f"{folder} exists and is not empty; choose a new folder")
    values = {
        "name": name,
        "module": f"braid_{name}",
        "distribution": distribution,
        "title": "".join(part.capitalize() for part in name.split("_")),
    }
    templates = files("braidrl") / "templates" / "algorithm"
    written: dict[Path, str] = {}
    for template, (target, text) in FILES.items():
        path = Path(Template(target).substitute(values))
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(Template((templates / f"{template}.txt").read_text()).substitute(values))
        written[path] = text
    return written
