"""Tables for terminals, and aligned plain text elsewhere."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], console: Console | None = None) -> None:
    """Print rows under a header to `console` (None: standard output)."""
    console = console or Console()
    if not console.is_terminal:
        for line in plain_lines([header, *rows]):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        return
    table = Table(*(Column(name, overflow="fold") for name in header), header_style="bold", show_lines=True)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def plain_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns. Line breaks within a cell become `, `."""
    cells = [[", ".join(cell.splitlines()) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]


INDENT = "  "


def columns(rows: Sequence[tuple[str, Sequence[str]]], width: int) -> Iterator[str]:
    """Yield lines with the name of each row and its cells in right-aligned columns.

    Lines have at most `width` characters, but at least one column. The columns that do not fit follow in further blocks
    of lines, each with the names repeated.
    """
    names = [name for name, _ in rows]
    stub = max(map(len, names))
    widths = [max(map(len, cells)) for cells in zip(*(cells for _, cells in rows), strict=True)]
    start = 0
    while start < len(widths):
        end, used = start + 1, len(INDENT) + stub + len(INDENT) + widths[start]
        while end < len(widths) and used + len(INDENT) + widths[end] <= width:
            used += len(INDENT) + widths[end]
            end += 1
        for name, cells in rows:
            row = [cell.rjust(size) for cell, size in zip(cells[start:end], widths[start:end])]
            yield INDENT.join([INDENT + name.ljust(stub), *row]).rstrip()
        start = end
