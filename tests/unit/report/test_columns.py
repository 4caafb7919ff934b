"""Aligned rows of cells."""

from braidrl.report.table import columns

ROWS = [("reward", ["1", "-0.5", "12"]), ("A", ["+3", "0", "-"])]


def test_cells_stand_under_each_other() -> None:
    assert list(columns(ROWS, 80)) == ["  reward   1  -0.5  12", "  A       +3     0   -"]


def test_what_does_not_fit_goes_on_below() -> None:
    lines = list(columns(ROWS, 20))
    assert lines == ["  reward   1  -0.5", "  A       +3     0", "  reward  12", "  A        -"]
    assert len(list(columns(ROWS, 1))) == 6
    assert list(columns([("reward", [])], 80)) == []
