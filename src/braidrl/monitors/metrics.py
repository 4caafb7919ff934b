"""Metrics as JSON lines: one line a step, floats written exactly (as decimals that read back equal),
and what their names mean."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from braidrl.utils.publish import publish_bytes

NONFINITE = "nonfinite_metrics"
"""Key that counts the values of a line which were NaN or infinite; such a value is written as null."""


class MetricsWriter:
    """Appends one line a step, `{"step": n, name: value, ...}`, which a reader sees at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of one step. JSON has no NaN: a non-finite value becomes null and is counted."""
        values = {name: float(value) for name, value in metrics.items()}
        line: dict[str, float | None] = {"step": step}
        line |= {name: value if math.isfinite(value) else None for name, value in values.items()}
        if nonfinite := sum(not math.isfinite(value) for value in values.values()):
            line[NONFINITE] = nonfinite
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def truncate_after(self, step: int) -> None:
        """Drop the lines of later steps (and a torn last line), so that a resumed run logs each step once."""
        kept = [line for line in read_metrics(self.path) if (line["step"] or 0) <= step]
        publish_bytes(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())


def read_metrics(path: Path) -> list[dict[str, float | None]]:
    """The lines of a metrics file in order; none when there is no file, and no last line that lacks its end.

    Raises `ValueError` when any other line is not JSON.
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
    """The source whose mean reward a metric of `orchestrator` or `eval` is; None: it is something else."""
    prefix, suffix = ("eval/", "/reward/mean") if process == "eval" else ("reward/", "/mean")
    if process == "trainer" or not (name.startswith(prefix) and name.endswith(suffix)):
        return None
    return name[len(prefix) : -len(suffix)] or None
