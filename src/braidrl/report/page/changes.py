"""What is new in an index since a page last asked: small JSON, which the page adds to what it has."""

from collections.abc import Sequence
from typing import Any

from braidrl.report.page.index import (
    EPISODE_COLUMNS,
    METRICS,
    SAMPLE_COLUMNS,
    Index,
    columns,
    metric_columns,
)

Cursor = tuple[int, ...]
"""How many rows a page has: of each metrics file, of episodes, of samples, of fates."""
START: Cursor = (0,) * (len(METRICS) + 3)
MOST_ROWS = 100_000
"""Rows of a kind in one page that is written once."""
MOST_POINTS = 2000
"""Lines of a metrics file in such a page."""


def changes(index: Index, since: Cursor = START) -> dict[str, Any]:
    """Everything that came after `since`, and the cursor that follows."""
    metrics = {
        name: metric_columns(index.metrics[name][start:]) for name, start in zip(METRICS, since, strict=False)
    }
    episodes, samples, fates = since[len(METRICS) :]
    return {
        "metrics": metrics,
        "episodes": columns(EPISODE_COLUMNS, index.episodes[episodes:]),
        "samples": columns(SAMPLE_COLUMNS, index.samples[samples:]),
        "fates": dict(index.fates[fates:]),
        "cursor": cursor_of(index),
    }


def cursor_of(index: Index) -> Cursor:
    """The cursor of a page that has everything."""
    read = [len(index.metrics[name]) for name in METRICS]
    return (*read, len(index.episodes), len(index.samples), len(index.fates))


def bounded(index: Index) -> dict[str, Any]:
    """The same for a page that is written once: at most `MOST_ROWS` episodes and about as many samples (whole steps),
    `MOST_POINTS` lines of metrics, evenly spread; `left_out` says of how many."""
    episodes = thinned(index.episodes, MOST_ROWS)
    samples = whole_steps(index.samples, MOST_ROWS)
    keys = {row[EPISODE_COLUMNS.index("key")] for row in episodes}
    metrics = {name: thinned(index.metrics[name], MOST_POINTS) for name in METRICS}
    sizes = {"episodes": (len(episodes), len(index.episodes)), "samples": (len(samples), len(index.samples))}
    sizes |= {f"{name}.jsonl": (len(rows), len(index.metrics[name])) for name, rows in metrics.items()}
    return {
        "metrics": {name: metric_columns(rows) for name, rows in metrics.items()},
        "episodes": columns(EPISODE_COLUMNS, episodes),
        "samples": columns(SAMPLE_COLUMNS, samples),
        "fates": {key: fate for key, fate in index.fates if key in keys},
        "cursor": cursor_of(index),
        "left_out": {name: {"shown": shown, "of": of} for name, (shown, of) in sizes.items() if shown < of},
    }


def whole_steps(samples: Sequence[Any], most: int) -> list[Any]:
    """The samples of as many steps, evenly spread, as have about `most` together."""
    if len(samples) <= most:
        return list(samples)
    step = SAMPLE_COLUMNS.index("step")
    steps = list(dict.fromkeys(row[step] for row in samples))
    kept = set(thinned(steps, max(2, most * len(steps) // len(samples))))
    return [row for row in samples if row[step] in kept]


def thinned(rows: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the rows, evenly spread, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[number * (len(rows) - 1) // (most - 1)] for number in range(most)]
