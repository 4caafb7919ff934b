"""`braid new-algorithm NAME`: a package with a working algorithm, its config, a test and a run, to start from."""

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
    "config.py": ("$module/config.py", "its parameters, and what Braid should know of it"),
    "init.py": ("$module/__init__.py", ""),
    "test.py": ("tests/test_$name.py", "a worked case, and the checks that every algorithm passes"),
    "rl.toml": ("rl.toml", "a run that uses it"),
    "README.md": ("README.md", ""),
    "pyproject.toml": ("pyproject.toml", ""),
}
"""Where each template goes, and what the user is told of it."""


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="braid new-algorithm", description=__doc__)
    parser.add_argument("name", help="the algorithm's `type`: lower-case letters, digits and underscores")
    parser.add_argument("--folder", type=Path, help="where to write it; braid-NAME here unless given")
    options = parser.parse_args(args)
    name = options.name.replace("-", "_")
    check_name(name)
    distribution = f"braid-{name.replace('_', '-')}"
    folder = options.folder or Path(distribution)
    written = write_package(folder, name, distribution)
    width = max(map(len, map(str, written)))
    lines = [f"  {str(path).ljust(width)}  {told}" for path, told in written.items() if told]
    steps = (
        f"pip install -e {folder}",
        f"python -m pytest {folder}",
        f"braid rl @ {folder}/rl.toml --dry-run",
    )
    print(
        "\n".join(
            [f"{folder} is a package that works as it stands:", *lines, "next:", *(f"  {s}" for s in steps)]
        )
    )
    return 0


def check_name(name: str) -> None:
    """Raise `ConfigError` unless `name` may be the `type` of a new algorithm."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError("NAME", f"{name!r} is no name; use lower-case letters, digits and underscores")
    if (known := ALGORITHMS.get(name)) is not None:
        owner = "braidrl" if known.origin == BUILT_IN else known.origin
        raise ConfigError("NAME", f"{name!r} is an algorithm of {owner} already; choose another name")


def write_package(folder: Path, name: str, distribution: str) -> dict[Path, str]:
    """Fill in the templates; returns the files in `folder`, with what to tell of each. Raises `ConfigError` where
    something would be overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError("--folder", f"{folder} exists and is not empty; name a new folder")
    words = {
        "name": name,
        "module": f"braid_{name}",
        "distribution": distribution,
        "title": "".join(part.capitalize() for part in name.split("_")),
    }
    templates = files("braidrl") / "templates" / "algorithm"
    written: dict[Path, str] = {}
    for template, (target, told) in FILES.items():
        path = Path(Template(target).substitute(words))
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(Template((templates / f"{template}.txt").read_text()).substitute(words))
        written[path] = told
    return written
