"""Tables on terminals and elsewhere."""

import io

from rich.console import Console

from braidrl.report.table import print_table

HEADER, ROWS = ("name", "values"), [("a", "x = 1\ny = ['b']"), ("longer", "[red]")]


def printed(terminal: bool, width: int) -> list[str]:
    stream = io.StringIO()
    print_table(HEADER, ROWS, Console(file=stream, force_terminal=terminal, width=width, color_system=None))
    return stream.getvalue().splitlines()


def test_columns_line_up_where_nobody_looks() -> None:
    assert printed(terminal=False, width=10) == [
        "name    values",
        "a       x = 1, y = ['b']",
        "longer  [red]",
    ]


def test_a_terminal_gets_a_drawn_table_that_cuts_nothing_off() -> None:
    text = "\n".join(printed(terminal=True, width=16))
    assert "…" not in text and "[red]" in text and "┃" in text
    assert max(map(len, text.splitlines())) <= 16
