"""Comparison of runs: differences of their configs, and their metrics side by side."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from braidrl.configs.rl import SHARED_COPIES
from braidrl.monitors.metrics import read_metrics
from braidrl.report.runs import read_settings
from braidrl.utils.run_folder import RunFolder

IGNORED = ("output_dir", *SHARED_COPIES)
"""Keys (and blocks) left out of the comparison: they always differ, or only repeat a key at the root."""
PROCESSES = ("orchestrator", "trainer", "eval")
OVERVIEW = (
    ("orchestrator", "reward/mean"),
    ("orchestrator", "zero_signal"),
    ("orchestrator", "staleness/mean"),
    ("orchestrator", "tokens/mean"),
    ("orchestrator", "tokens_per_second"),
    ("trainer", "loss"),
    ("trainer", "mismatch_kl"),
    ("trainer", "entropy"),
    ("trainer", "grad_norm"),
    ("trainer", "tokens_per_second"),
)
"""Metrics compared by default, in addition to the rewards of sources and evaluations."""


@dataclass(frozen=True)
class Curve:
    """Metric of one run over its steps."""

    steps: list[int]
    values: list[float]
    ci95: float | None = None
    """Half-width of the 95% interval of the last value, if known."""


@dataclass(frozen=True)
class Metric:
    """Metric of several runs."""

    process: str
    name: str
    curves: list[Curve | None]
    """Curve of each run; None if a run does not have the metric."""

    @property
    def title(self) -> str:
        return self.name if self.process == "eval" else f"{self.process}/{self.name}"


def differences(runs: Sequence[RunFolder]) -> list[tuple[str, list[Any]]]:
    """Return the dotted keys in which the configs of `runs` differ, with the value in each run (None: not set)."""
    settings = [dict(flat(read_settings(run))) for run in runs]
    keys = sorted({key for each in settings for key in each if not _ignored(key)})
    rows = [(key, [each.get(key) for each in settings]) for key in keys]
    return [(key, values) for key, values in rows if any(value != values[0] for value in values)]


def _ignored(key: str) -> bool:
    return any(key == block or key.startswith(f"{block}.") for block in IGNORED)


def flat(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings as pairs of dotted key and value. Lists of blocks are indexed: `source[0].name`."""
    if isinstance(settings, Mapping) and settings:
        for key, value in settings.items():
            yield from flat(value, f"{prefix}.{key}" if prefix else key)
    elif isinstance(settings, list) and any(isinstance(each, Mapping) for each in settings):
        for index, value in enumerate(settings):
            yield from flat(value, f"{prefix}[{index}]")
    else:
        yield prefix, settings


def compared(runs: Sequence[RunFolder], wanted: Sequence[str] = ()) -> list[Metric]:
    """Return the metrics of `runs` whose titles contain one of `wanted`, by default those of the overview."""
    rows = [{process: read_metrics(run.metrics(process)) for process in PROCESSES} for run in runs]
    metrics = []
    for process in PROCESSES:
        names = {name: None for each in rows for row in each[process] for name in row if name != "step"}
        for name in names:
            metric = Metric(process, name, [_curve(each[process], name) for each in rows])
            chosen = any(word in metric.title for word in wanted) if wanted else _in_overview(process, name)
            if chosen and any(metric.curves):
                metrics.append(metric)
    return sorted(metrics, key=_sort_key) if not wanted else metrics


def _in_overview(process: str, name: str) -> bool:
    if process == "eval":
        return name.endswith("/reward/mean") or "/pass@" in name
    rewards = process == "orchestrator" and name.startswith("reward/") and name.endswith("/mean")
    return rewards or (process, name) in OVERVIEW


def _sort_key(metric: Metric) -> tuple[int, int, str]:
    """Sort evaluations first, then rewards, then the rest in the order of the overview."""
    if metric.process == "eval":
        return 0, 0, metric.name
    if metric.name.startswith("reward/"):
        return 1, len(metric.name.split("/")), metric.name
    return 2, OVERVIEW.index((metric.process, metric.name)), metric.name


def _curve(rows: Sequence[Mapping[str, Any]], name: str) -> Curve | None:
    points = [(int(row["step"]), float(row[name])) for row in rows if row.get(name) is not None]
    if not points:
        return None
    steps, values = map(list, zip(*points, strict=True))
    last = next(row for row in reversed(rows) if row.get(name) is not None)
    ci95 = last.get(f"{name.removesuffix('mean')}ci95") if name.endswith("/mean") else None
    return Curve(steps, values, ci95)
