"""User functions named in a config as `my_module.function` or `path/to/file.py:function`.

Modules are also searched in the current directory, as with `python -m`.
"""

import ast
import importlib.util
import pkgutil
import symtable
import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from braidrl.configs.core.errors import ConfigError

FUNCTION_KEYS = {"import_path", "kwargs"}
"""Keys of a config block that names a function."""


def check_functions(config: BaseModel, prefix: str = "") -> None:
    """Raise `ConfigError` for the first function in a config that does not exist, without importing anything.

    `prefix` is prepended to the key that the error reports.
    """
    for path, block in _blocks(config, prefix):
        values = block.model_dump(include=FUNCTION_KEYS)
        if values.keys() == FUNCTION_KEYS:
            try:
                find_function(values["import_path"])
            except ValueError as error:
                raise ConfigError(f"{path}import_path", str(error)) from None


def find_function(import_path: str) -> None:
    """Raise `ValueError` unless the module exists and its source defines the name. Nothing is imported.

    Names that only an import could resolve are accepted: attributes of a class, names from `import *`, and names in
    modules without Python source.
    """
    source, name = _locate(import_path)
    if source is None:
        return
    defined = _top_level_names(source)
    if defined is not None and name not in defined:
        nearest = get_close_matches(name, defined, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"{import_path!r}: {source} does not define {name!r}{hint}")


def load_function(import_path: str) -> Callable[..., Any]:
    """Import and return a function. Raises `ValueError` if it cannot be imported or is not callable."""
    search_here()
    try:
        function = _import(import_path)
    except (ImportError, AttributeError, ValueError, OSError) as error:
        raise ValueError(
            f"{import_path!r} cannot be imported: {error}; give my_module.function of a module in {Path.cwd()} or on "
            f"the Python path, or path/to/file.py:function"
        ) from error
    if not callable(function):
        raise ValueError(f"{import_path!r} is {function!r}; a callable is required")
    return function


def search_here() -> None:
    """Add the current directory to the module search path, after all other entries."""
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.append(str(Path.cwd()))


def _import(import_path: str) -> Any:
    file, _, name = import_path.rpartition(":")
    if not file.endswith(".py"):
        return pkgutil.resolve_name(import_path)
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _blocks(config: BaseModel, path: str) -> Iterator[tuple[str, BaseModel]]:
    """Yield every block of a config with the prefix of its keys (empty, or ending in a dot)."""
    yield path, config
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            yield from _blocks(value, f"{path}{name}.")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    yield from _blocks(item, f"{path}{name}[{index}].")


def _locate(import_path: str) -> tuple[Path | None, str]:
    """Return (source file, name to look up in it). The file is None if the module has no Python source."""
    file, _, name = import_path.rpartition(":")
    if file.endswith(".py"):
        if not Path(file).is_file():
            raise ValueError(f"{import_path!r}: there is no file {Path(file).absolute()}")
        return Path(file), name
    parts = import_path.replace(":", ".").split(".")
    spec, depth = None, 0
    while depth < len(parts) and (found := _find(parts[depth], spec)) is not None:
        spec, depth = found, depth + 1
    if spec is None:
        raise ValueError(
            f"{import_path!r}: there is no module {parts[0]!r} in {Path.cwd()} or on the Python path; run from the "
            f"folder that contains it, or give path/to/file.py:function"
        )
    if depth == len(parts):
        raise ValueError(f"{import_path!r} is a module; name a function in it")
    if spec.origin is None:  # namespace package: a folder without __init__.py
        raise ValueError(f"{import_path!r}: there is no module {parts[depth]!r} in {'.'.join(parts[:depth])}")
    return (Path(spec.origin) if spec.origin.endswith(".py") else None), parts[depth]


def _find(name: str, parent: ModuleSpec | None) -> ModuleSpec | None:
    """Return the spec of a submodule of `parent`, or of a top-level module if `parent` is None."""
    if parent is not None:
        folders = parent.submodule_search_locations
        return None if folders is None else PathFinder.find_spec(name, list(folders))
    specs = [PathFinder.find_spec(name, [str(Path.cwd()), *sys.path])]
    specs += [finder.find_spec(name, None) for finder in sys.meta_path]
    # Prefer a real module to a namespace package (no origin), as Python's import does.
    return min((spec for spec in specs if spec), key=lambda spec: spec.origin is None, default=None)


def _top_level_names(source: Path) -> set[str] | None:
    """Return the names bound at the top level of a module, or None if they cannot be determined statically."""
    text = source.read_text(encoding="utf-8")
    try:
        statements = ast.walk(ast.parse(text))
        symbols = symtable.symtable(text, str(source), "exec").get_symbols()
    except SyntaxError as error:
        raise ValueError(f"{source}, line {error.lineno}: {error.msg}") from None
    names = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
    starred = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in statements)
    return None if starred or "__getattr__" in names else names
