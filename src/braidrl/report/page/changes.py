"""Incremental updates of a page: the rows added to an index since the last request, as JSON."""

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
"""Numbers of rows that a page has: of each metrics file, episodes, samples, group outcomes (`fates`)."""
START: Cursor = (0,) * (len(METRICS) + 3)
MOST_ROWS = 100_000
"""Maximum number of rows per table in a page written by `braid report`."""
MOST_POINTS = 2000
"""Maximum number of lines per metrics file in such a page."""


def changes(index: Index, since: Cursor = START) -> dict[str, Any]:
    """Return all rows added after `since`, and the new cursor."""
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
    """Return the cursor of a page that has all rows."""
    read = [len(index.metrics[name]) for name in METRICS]
    return (*read, len(index.episodes), len(index.samples), len(index.fates))


def bounded(index: Index) -> dict[str, Any]:
    """Return the rows for a page written by `braid report`, limited in number and spread evenly over the run.

    Included are at most `MOST_ROWS` episodes, about as many samples (in whole steps), and `MOST_POINTS` lines per
    metrics file. `left_out` has the numbers shown and in total where rows were left out.
    """
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
    """Return about `most` samples, as all samples of evenly spread steps."""
    if len(samples) <= most:
        return list(samples)
    step = SAMPLE_COLUMNS.index("step")
    steps = list(dict.fromkeys(row[step] for row in samples))
    kept = set(thinned(steps, max(2, most * len(steps) // len(samples))))
    return [row for row in samples if row[step] in kept]


def thinned(rows: Sequence[Any], most: int) -> list[Any]:
    """Return at most `most` evenly spread rows, including the first and the last."""
    if len(rows) <= most:
        return list(rows)
    return [rows[number * (len(rows) - 1) // (most - 1)] for number in range(most)]
