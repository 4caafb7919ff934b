"""Named rows of short cells, aligned and broken to a width."""

from collections.abc import Iterator, Sequence

INDENT = "  "


def columns(rows: Sequence[tuple[str, Sequence[str]]], width: int) -> Iterator[str]:
    """Lines of at most `width` characters, of one column at least: the name of each row, then its cells, right-aligned
    under those of the rows above. Columns that do not fit go on below, beside the names again."""
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
