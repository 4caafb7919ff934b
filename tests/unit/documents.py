"""The documents of the repository and the fenced blocks in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/**/*.md", "environments/**/*.md")
    for path in REPOSITORY.glob(pattern)
)
FENCE = re.compile(r"^( *)(`{3,})(\S*)[^\n]*\n(.*?)^\1\2$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    document: Path
    line: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file that it shows, by its first line: `# eval.toml`."""
        named = re.match(r"# ([\w./-]+\.\w+)\n", self.text)
        return named[1] if named else None

    @property
    def place(self) -> str:
        """`docs/losses.md:52`."""
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
