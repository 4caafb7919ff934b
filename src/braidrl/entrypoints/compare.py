"""`braid compare RUN RUN ...`: differences between the configs of runs, and their metrics side by side.

A cell contains the curve over the steps (on the same scale for all runs), the first and last value, and for evaluations
half the width of the 95% interval of the last value.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from braidrl.configs.core.errors import ConfigError
from braidrl.utils.run_folder import RunFolder

if TYPE_CHECKING:
    from braidrl.report.compare import Curve, Metric

WIDTH = 16
"""Number of bars of a curve."""
ABSENT = "-"


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="braid compare", description=__doc__)
    parser.add_argument("run", nargs="+", type=Path, help="run folders, two or more")
    parser.add_argument(
        "--metrics",
        help="comma-separated substrings of the names of the metrics to show (default: an overview)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with all points of the curves")
    options = parser.parse_args(args)
    runs = [_opened(path) for path in options.run]
    if len(runs) < 2:
        raise ConfigError("RUN", f"cannot compare a single run, {runs[0].root}; give two or more")

    from braidrl.report.compare import compared, differences

    try:
        keys = differences(runs)
        metrics = compared(runs, options.metrics.split(",") if options.metrics else ())
    except ValueError as error:
        raise ConfigError("RUN", str(error)) from None
    if options.metrics and not metrics:
        raise ConfigError(
            "--metrics", f"no run has a metric with {options.metrics!r} in its name; see docs/metrics.md"
        )
    if options.json:
        print(json.dumps(as_json(runs, keys, metrics), indent=2))
    else:
        show(runs, keys, metrics)
    return 0


def show(runs: list[RunFolder], keys: list[tuple[str, list[Any]]], metrics: "list[Metric]") -> None:
    from braidrl.report.table import print_table

    names = short_names([run.root for run in runs])
    if keys:
        rows = [(key, *(ABSENT if value is None else str(value) for value in values)) for key, values in keys]
        print_table(("config", *names), rows)
    else:
        print("the configs are the same")
    print()
    print_table(("metric", *names), [(metric.title, *cells(metric)) for metric in metrics])


def cells(metric: "Metric") -> list[str]:
    """Return the cell of each run, with all curves on the same scale."""
    points = [value for curve in metric.curves if curve is not None for value in curve.values]
    low, high = min(points), max(points)
    return [ABSENT if curve is None else _cell(curve, low, high) for curve in metric.curves]


def _cell(curve: "Curve", low: float, high: float) -> str:
    from braidrl.report.sparkline import sparkline

    interval = "" if curve.ci95 is None else f" ± {number(curve.ci95)}"
    if len(curve.values) == 1:
        return f"{number(curve.values[0])}{interval}"
    bars = sparkline(curve.values, WIDTH, low, high)
    return f"{bars} {number(curve.values[0])} → {number(curve.values[-1])}{interval}"


def number(value: float) -> str:
    """Format with four significant digits and no trailing zeros."""
    return f"{value:.4g}"


def short_names(paths: list[Path]) -> list[str]:
    """Return the shortest suffixes of the paths, in whole components, that are all different."""
    parts = [path.absolute().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def as_json(
    runs: list[RunFolder], keys: list[tuple[str, list[Any]]], metrics: "list[Metric]"
) -> dict[str, Any]:
    return {
        "runs": [str(run.root) for run in runs],
        "config": dict(keys),
        "metrics": {
            metric.title: [
                curve and {"steps": curve.steps, "values": curve.values, "ci95": curve.ci95}
                for curve in metric.curves
            ]
            for metric in metrics
        },
    }


def _opened(path: Path) -> RunFolder:
    run = RunFolder(path)
    if not (path / "metrics").is_dir():
        raise ConfigError(
            "RUN", f"{path} is not a run folder: it has no metrics; `braid runs` lists the runs in a folder"
        )
    return run
