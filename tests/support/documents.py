"""The Markdown files of the repository and their fenced blocks."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from braidrl.entrypoints.schema import CONFIGS
from tests.support.paths import REPOSITORY

DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/**/*.md", "environments/**/*.md")
    for path in REPOSITORY.glob(pattern)
)
FENCE = re.compile(r"^( *)(`{3,})(\S*)[^\n]*\n(.*?)^\1\2$", re.MULTILINE | re.DOTALL)
READERS: dict[str, Callable[[str], Any]] = {"toml": tomllib.loads, "yaml": yaml.safe_load, "json": json.loads}


@dataclass(frozen=True)
class Block:
    """Fenced block of a document."""

    document: Path
    line: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """Name of the file that the block shows, from its first line, such as `# eval.toml`."""
        named = re.match(r"# ([\w./-]+\.\w+)\n", self.text)
        return named[1] if named else None

    @property
    def data(self) -> Any:
        """Parsed TOML: a config, or the `project` table of a package."""
        return READERS[self.language](self.text)

    @property
    def command(self) -> str:
        """Command whose config the block shows, from its file name (`# eval.toml`); by default `braid rl`."""
        stem = Path(self.file or "").stem
        return stem if stem in CONFIGS else "rl"

    @property
    def place(self) -> str:
        """Location of the block, such as `docs/losses.md:52`."""
        return f"{name_of(self.document)}:{self.line}"


def name_of(document: Path) -> str:
    return document.relative_to(REPOSITORY).as_posix()


def blocks_of(document: Path) -> Iterator[Block]:
    text = document.read_text()
    for fence in FENCE.finditer(text):
        lines = fence[4].splitlines(keepends=True)
        content = "".join(line.removeprefix(fence[1]) for line in lines)
        yield Block(document, text.count("\n", 0, fence.start()) + 1, fence[3], content)


BLOCKS = [block for document in DOCUMENTS for block in blocks_of(document)]
