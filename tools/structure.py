"""Print the structure of the package: imports per package, import cycles, and files or functions that are too long.

    python tools/structure.py                    # the checkout that holds this script
    python tools/structure.py --root ../other    # another checkout

Needs `grimp`, which `import-linter` installs. Imports inside functions and under `if TYPE_CHECKING` count. Exits with
status 1 if a limit is exceeded.
"""

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grimp

PACKAGE = "braidrl"
MODULES_PER_PACKAGE = 15
SHORT_MODULE = 40
SHORT_MODULES = 20
FILE_LINES = 300
FUNCTION_LINES = 40


@dataclass(frozen=True)
class Package:
    """One package: its modules, the imports among its children and the imports that leave it.

    Children are modules and subpackages; a subpackage counts as one child.
    """

    name: str
    modules: int
    children: int
    inner: int
    outer: int


def edges(graph: grimp.ImportGraph) -> set[tuple[str, str]]:
    """Return all (importer, imported) pairs of modules."""
    return {
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    }


def child(package: str, module: str) -> str | None:
    """Return the direct child of `package` that contains `module`, or None if no child does."""
    prefix = package + "."
    return prefix + module[len(prefix) :].split(".")[0] if module.startswith(prefix) else None


def packages(graph: grimp.ImportGraph, root: Path) -> Iterator[Package]:
    """Yield the packages below `root` in alphabetical order."""
    arrows = edges(graph)
    for init in sorted(root.rglob("__init__.py")):
        name = ".".join(init.parent.relative_to(root.parent).parts)
        pairs = {(child(name, importer), child(name, imported)) for importer, imported in arrows}
        inner = {(a, b) for a, b in pairs if a and b and a != b}
        outer = {(a, b) for a, b in arrows if child(name, a) and not child(name, b) and b != name}
        modules = sum(1 for path in init.parent.glob("*.py") if path.name != "__init__.py")
        yield Package(name, modules, len(graph.find_children(name)), len(inner), len(outer))


def cycles(arrows: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return the strongly connected components of two or more modules."""
    after: dict[str, set[str]] = {}
    for importer, imported in arrows:
        after.setdefault(importer, set()).add(imported)
        after.setdefault(imported, set())
    reach = {module: reachable(after, module) for module in after}
    found = {frozenset(other for other in reach[m] if m in reach[other]) for m in after if m in reach[m]}
    return sorted(sorted(component) for component in found)


def reachable(after: dict[str, set[str]], start: str) -> set[str]:
    """Return the modules that `start` imports, directly or through others."""
    seen: set[str] = set()
    waiting = list(after[start])
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting.extend(after[module])
    return seen


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the name and the number of lines of each function in a file, decorators excluded."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def listing(title: str, items: list[str]) -> None:
    """Print a title with the number of items, then the items."""
    print(f"\n{title}: {len(items)}")
    for item in items:
        print(f"  {item}")


def main() -> None:
    """Print the report and exit with status 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description="Print the structure of the package.")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="checkout to measure")
    source = parser.parse_args().root.resolve() / "src"
    sys.path.insert(0, str(source))
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    root = source / PACKAGE

    found = list(packages(graph, root))
    print(f"{'package':<44} {'modules':>7} {'children':>8} {'arrows among':>12} {'arrows out':>10}")
    for package in found:
        print(
            f"{package.name:<44} {package.modules:>7} {package.children:>8} {package.inner:>12} {package.outer:>10}"
        )

    files = {path: len(path.read_text().splitlines()) for path in sorted(root.rglob("*.py"))}
    modules = {path.relative_to(root): n for path, n in files.items() if path.name != "__init__.py"}
    short = [f"{path} ({n})" for path, n in modules.items() if n < SHORT_MODULE]
    rings = [" <-> ".join(cycle) for cycle in cycles(edges(graph))]
    crowded = [f"{p.name} ({p.modules})" for p in found if p.modules > MODULES_PER_PACKAGE]
    large = [f"{path.relative_to(root)} ({n})" for path, n in files.items() if n > FILE_LINES]
    long = [
        f"{path.relative_to(root)} {name} ({lines})"
        for path in files
        for name, lines in functions(path)
        if lines > FUNCTION_LINES
    ]
    listing("Import cycles", rings)
    listing(f"Packages of more than {MODULES_PER_PACKAGE} modules", crowded)
    listing(f"Modules under {SHORT_MODULE} lines (limit {SHORT_MODULES})", short)
    listing(f"Files over {FILE_LINES} lines", large)
    listing(f"Functions over {FUNCTION_LINES} lines", long)
    print(f"\n{len(modules)} modules in {len(found)} packages, {len(edges(graph))} imports")
    sys.exit(1 if rings or crowded or large or long or len(short) > SHORT_MODULES else 0)


if __name__ == "__main__":
    main()
