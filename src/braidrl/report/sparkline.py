"""A curve in a few characters."""

import math
from collections.abc import Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-~=*#@"
"""Where the terminal has no others."""


def sparkline(
    values: Sequence[float], width: int, low: float | None = None, high: float | None = None
) -> str:
    """`values` as at most `width` bars between `low` and `high` (None: their own least and greatest).

    More values than bars are averaged evenly; those that are not finite are left out.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    means = resample(finite, width)
    low = min(means) if low is None else low
    high = max(means) if high is None else high
    return "".join(BARS[_level(value, low, high)] for value in means)


def resample(values: Sequence[float], width: int) -> list[float]:
    """Means of at most `width` runs of `values`, of lengths that differ by one at most."""
    count = min(width, len(values))
    edges = [len(values) * index // count for index in range(count + 1)]
    return [math.fsum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def plain(text: str) -> str:
    """The same bars in ASCII."""
    return text.translate(str.maketrans(BARS, ASCII_BARS))


def _level(value: float, low: float, high: float) -> int:
    if high <= low:
        return 0
    share = (value - low) / (high - low)
    return min(len(BARS) - 1, max(0, int(share * len(BARS))))
