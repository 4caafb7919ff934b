"""Runs side by side: what their configs differ in, and what became of their metrics."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from braidrl.configs.rl import SHARED_COPIES
from braidrl.monitors.metrics import read_metrics
from braidrl.report.runs import read_settings
from braidrl.utils.run_folder import RunFolder

IGNORED = ("output_dir", *SHARED_COPIES)
"""Keys that differ between any two runs, or wherever the key at the root does, and their blocks."""
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
"""What is compared unless something else is asked for, beside the rewards of sources and of evaluations."""


@dataclass(frozen=True)
class Curve:
    """A metric of one run."""

    steps: list[int]
    values: list[float]
    ci95: float | None = None
    """Half the 95% interval of the last value, where it is known."""


@dataclass(frozen=True)
class Metric:
    """A metric of several runs."""

    process: str
    name: str
    curves: list[Curve | None]
    """Of each run; None: it has no such metric."""

    @property
    def title(self) -> str:
        return self.name if self.process == "eval" else f"{self.process}/{self.name}"


def differences(runs: Sequence[RunFolder]) -> list[tuple[str, list[Any]]]:
    """The dotted keys in which the configs of `runs` differ, with the value in each (None: it is not set)."""
    settings = [dict(flat(read_settings(run))) for run in runs]
    keys = sorted({key for each in settings for key in each if not _ignored(key)})
    rows = [(key, [each.get(key) for each in settings]) for key in keys]
    return [(key, values) for key, values in rows if any(value != values[0] for value in values)]


def _ignored(key: str) -> bool:
    return any(key == block or key.startswith(f"{block}.") for block in IGNORED)


def flat(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of nested settings; of lists of blocks with their numbers."""
    if isinstance(settings, Mapping) and settings:
        for key, value in settings.items():
            yield from flat(value, f"{prefix}.{key}" if prefix else key)
    elif isinstance(settings, list) and any(isinstance(each, Mapping) for each in settings):
        for index, value in enumerate(settings):
            yield from flat(value, f"{prefix}[{index}]")
    else:
        yield prefix, settings


def compared(runs: Sequence[RunFolder], wanted: Sequence[str] = ()) -> list[Metric]:
    """Metrics of `runs`: those whose titles contain one of `wanted`, or an overview."""
    rows = [{process: read_metrics(run.metrics(process)) for process in PROCESSES} for run in runs]
    metrics = []
    for process in PROCESSES:
        names = {name: None for each in rows for row in each[process] for name in row if name != "step"}
        for name in names:
            metric = Metric(process, name, [_curve(each[process], name) for each in rows])
            chosen = any(word in metric.title for word in wanted) if wanted else _in_overview(process, name)
            if chosen and any(metric.curves):
                metrics.append(metric)
    return sorted(metrics, key=_place) if not wanted else metrics


def _in_overview(process: str, name: str) -> bool:
    if process == "eval":
        return name.endswith("/reward/mean") or "/pass@" in name
    rewards = process == "orchestrator" and name.startswith("reward/") and name.endswith("/mean")
    return rewards or (process, name) in OVERVIEW


def _place(metric: Metric) -> tuple[int, int, str]:
    """Evaluations first, then rewards, then the rest in the order of the overview."""
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
