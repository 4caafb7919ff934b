"""Metrics as JSON lines: one line per step, floats written so that they read back exactly."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from braidrl.utils.publish import publish_bytes

NONFINITE = "nonfinite_metrics"
"""Key with the number of NaN or infinite values in a line. These values are written as null."""


class MetricsWriter:
    """Writer of one line per step, `{"step": n, name: value, ...}`, visible to readers immediately."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of one step. JSON has no NaN, so non-finite values are written as null and counted."""
        values = {name: float(value) for name, value in metrics.items()}
        line: dict[str, float | None] = {"step": step}
        line |= {name: value if math.isfinite(value) else None for name, value in values.items()}
        if nonfinite := sum(not math.isfinite(value) for value in values.values()):
            line[NONFINITE] = nonfinite
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def truncate_after(self, step: int) -> None:
        """Remove the lines of later steps and a torn last line, so that a resumed run logs each step once."""
        kept = [line for line in read_metrics(self.path) if (line["step"] or 0) <= step]
        publish_bytes(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())


def read_metrics(path: Path) -> list[dict[str, float | None]]:
    """Return the lines of a metrics file in order, without an unfinished last line. Empty if there is no file.

    Raises `ValueError` if any other line is not JSON.
    """
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    metrics = []
    for number, line in enumerate(lines, start=1):
        try:
            metrics.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{path}, line {number} is not JSON: {error}; repair or remove that line"
            ) from None
    return metrics


def source_of(process: str, name: str) -> str | None:
    """Return the source if a metric of `orchestrator` or `eval` is the mean reward of a source, otherwise None."""
    prefix, suffix = ("eval/", "/reward/mean") if process == "eval" else ("reward/", "/mean")
    if process == "trainer" or not (name.startswith(prefix) and name.endswith(suffix)):
        return None
    return name[len(prefix) : -len(suffix)] or None
