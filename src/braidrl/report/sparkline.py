"""Sparklines: curves drawn with block characters."""

import math
from collections.abc import Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-~=*#@"
"""Replacements of `BARS` on ASCII-only terminals."""


def sparkline(
    values: Sequence[float], width: int, low: float | None = None, high: float | None = None
) -> str:
    """Return a string of at most `width` bars for `values`.

    Non-finite values are left out. If there are more values than bars, each bar shows the mean of adjacent values.

    Args:
        low: value of the lowest bar (None: minimum of the bars).
        high: value of the highest bar (None: maximum of the bars).
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    means = resample(finite, width)
    low = min(means) if low is None else low
    high = max(means) if high is None else high
    return "".join(BARS[_level(value, low, high)] for value in means)


def resample(values: Sequence[float], width: int) -> list[float]:
    """Split `values` into at most `width` chunks of nearly equal length and return their means."""
    count = min(width, len(values))
    edges = [len(values) * index // count for index in range(count + 1)]
    return [math.fsum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def plain(text: str) -> str:
    """Replace the bars in `text` by ASCII characters."""
    return text.translate(str.maketrans(BARS, ASCII_BARS))


def _level(value: float, low: float, high: float) -> int:
    if high <= low:
        return 0
    share = (value - low) / (high - low)
    return min(len(BARS) - 1, max(0, int(share * len(BARS))))
