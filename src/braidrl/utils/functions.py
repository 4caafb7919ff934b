"""Functions of the user's own, named in a configuration: `my_module.function`, or `path/to/file.py:function`.

Modules are looked for in the current directory, too, as `python -m` does.
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
"""A block of a configuration that has both names a function."""


def check_functions(config: BaseModel, prefix: str = "") -> None:
    """Raise `ConfigError` for the first function of a configuration that does not exist; nothing is imported.

    `prefix` leads the path of the key.
    """
    for path, block in _blocks(config, prefix):
        named = block.model_dump(include=FUNCTION_KEYS)
        if named.keys() == FUNCTION_KEYS:
            try:
                find_function(named["import_path"])
            except ValueError as error:
                raise ConfigError(f"{path}import_path", str(error)) from None


def find_function(import_path: str) -> None:
    """Raise `ValueError` unless a module is there and binds the name, as far as its text tells; nothing is imported.

    What only running it can tell is taken to be right: attributes of a class, names that come by `import *`, and
    modules that are not Python text.
    """
    source, name = _locate(import_path)
    if source is None:
        return
    known = _names(source)
    if known is not None and name not in known:
        nearest = get_close_matches(name, known, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"{import_path!r}: {source} defines no {name!r}{hint}")


def load_function(import_path: str) -> Callable[..., Any]:
    """Import it. Raises `ValueError` when it cannot be imported or called."""
    search_here()
    try:
        function = _import(import_path)
    except (ImportError, AttributeError, ValueError, OSError) as error:
        raise ValueError(
            f"{import_path!r} cannot be imported: {error}; give my_module.function of a module in {Path.cwd()} or on "
            f"the Python path, or path/to/file.py:function"
        ) from error
    if not callable(function):
        raise ValueError(f"{import_path!r} is {function!r}, which is no function")
    return function


def search_here() -> None:
    """Let modules of the current directory be imported, too."""
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.append(str(Path.cwd()))


def _import(import_path: str) -> Any:
    file, _, name = import_path.rpartition(":")
    if not file.endswith(".py"):
        return pkgutil.resolve_name(import_path)
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _blocks(config: BaseModel, path: str) -> Iterator[tuple[str, BaseModel]]:
    """Every block with the dotted path that leads its keys."""
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
    """(the file that should bind a name, that name); no file where the module has no Python text."""
    file, _, name = import_path.rpartition(":")
    if file.endswith(".py"):
        if not Path(file).is_file():
            raise ValueError(f"{import_path!r}: there is no file {Path(file).absolute()}")
        return Path(file), name
    words = import_path.replace(":", ".").split(".")
    spec, depth = None, 0
    while depth < len(words) and (found := _find(words[depth], spec)) is not None:
        spec, depth = found, depth + 1
    if spec is None:
        raise ValueError(
            f"{import_path!r}: there is no module {words[0]!r} in {Path.cwd()} or on the Python path; run from the "
            f"folder that holds it, or give path/to/file.py:function"
        )
    if depth == len(words):
        raise ValueError(f"{import_path!r} is a module; name a function in it")
    if spec.origin is None:  # a folder without __init__.py
        raise ValueError(f"{import_path!r}: there is no module {words[depth]!r} in {'.'.join(words[:depth])}")
    return (Path(spec.origin) if spec.origin.endswith(".py") else None), words[depth]


def _find(name: str, parent: ModuleSpec | None) -> ModuleSpec | None:
    """A module of `parent`, or one that stands alone."""
    if parent is not None:
        folders = parent.submodule_search_locations
        return None if folders is None else PathFinder.find_spec(name, list(folders))
    specs = [PathFinder.find_spec(name, [str(Path.cwd()), *sys.path])]
    specs += [finder.find_spec(name, None) for finder in sys.meta_path]
    # a folder without __init__.py is the last resort, as it is when Python imports
    return min((spec for spec in specs if spec), key=lambda spec: spec.origin is None, default=None)


def _names(source: Path) -> set[str] | None:
    """What a module binds at its top level; None where its text alone does not tell."""
    text = source.read_text(encoding="utf-8")
    try:
        statements = ast.walk(ast.parse(text))
        symbols = symtable.symtable(text, str(source), "exec").get_symbols()
    except SyntaxError as error:
        raise ValueError(f"{source}, line {error.lineno}: {error.msg}") from None
    names = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
    starred = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in statements)
    return None if starred or "__getattr__" in names else names
