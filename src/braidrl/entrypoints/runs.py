"""`braid runs [FOLDER]`: list the runs in a folder and its subfolders with their status, progress and last metrics."""

import argparse
import json
import statistics
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from braidrl.configs.core.errors import ConfigError

if TYPE_CHECKING:
    from braidrl.report.runs import RunSummary

DEFAULT = Path("outputs")
ABSENT = "-"
SHOWN: dict[str, tuple[str, str, str]] = {
    "reward": ("orchestrator", "reward/mean", "{:.3f}"),
    "loss": ("trainer", "loss", "{:+.4f}"),
    "KL": ("trainer", "mismatch_kl", "{:.1e}"),
    "stale": ("orchestrator", "staleness/mean", "{:.1f}"),
    "tok/s": ("trainer", "tokens_per_second", "{:.0f}"),
}
"""Metric columns: title to (process, metric, format)."""


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="braid runs", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help=f"folder to search (default: {DEFAULT})")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(args)
    summaries = found(options.folder or DEFAULT)
    if options.json:
        print(json.dumps([as_json(each) for each in summaries], indent=2))
    elif not summaries:
        print(f"no runs in {options.folder or DEFAULT}")
    else:
        show(summaries)
    return 0


def found(folder: Path) -> "list[RunSummary]":
    """Return the runs below a folder, oldest first. Runs without a record come first. Raises `ConfigError`."""
    from braidrl.report.runs import find_runs, summarize

    if not folder.is_dir():
        raise ConfigError("FOLDER", f"there is no folder {folder}; give a folder that contains runs")
    try:
        summaries = [summarize(run) for run in find_runs(folder)]
    except ValueError as error:
        raise ConfigError("FOLDER", str(error)) from None
    return sorted(summaries, key=lambda each: each.started or 0.0)


def show(summaries: "list[RunSummary]") -> None:
    from braidrl.report.table import print_table

    header = ("run", "kind", "status", "step", *SHOWN, "started", "took")
    rows = [
        (
            str(each.run.root),
            each.kind or ABSENT,
            each.outcome.status,
            _steps(each),
            *(_or_absent(_value(each, process, name), text.format) for process, name, text in SHOWN.values()),
            _or_absent(each.started, lambda when: f"{datetime.fromtimestamp(when):%Y-%m-%d %H:%M}"),
            _or_absent(each.seconds, duration),
        )
        for each in summaries
    ]
    print_table(header, rows)
    for each in summaries:
        if each.outcome.error is not None:
            print(f"{each.run.root}: {each.outcome.error}")


def duration(seconds: float) -> str:
    """Format seconds as `12 s`, `3 min`, `5.2 h` or `2.1 d`."""
    for limit, unit, size in ((120, "s", 1), (120 * 60, "min", 60), (48 * 3600, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}" if unit != "h" else f"{seconds / size:.1f} h"
    return f"{seconds / 86400:.1f} d"


def as_json(summary: "RunSummary") -> dict[str, Any]:
    return {
        "run": str(summary.run.root),
        "kind": summary.kind,
        "status": summary.outcome.status,
        "error": summary.outcome.error,
        "step": summary.step,
        "max_steps": summary.settings.get("max_steps"),
        "started": summary.started,
        "seconds": summary.seconds,
        "metrics": summary.last,
    }


def _steps(summary: "RunSummary") -> str:
    """Format the progress, such as `12/40`, or the evaluated version of an evaluation, such as `v40`."""
    if summary.kind == "eval":
        return _or_absent(summary.step, "v{}".format)
    return f"{_or_absent(summary.step, str)}/{summary.settings.get('max_steps', ABSENT)}"


def _value(summary: "RunSummary", process: str, name: str) -> float | None:
    """Return the last value of a metric. The reward of an evaluation is the mean over its sources."""
    if summary.kind == "eval" and name == "reward/mean":
        row = summary.last.get("eval", {})
        means = [value for key, value in row.items() if key.endswith("/reward/mean")]
        return statistics.fmean(means) if means else None
    return summary.metric(process, name)


def _or_absent(value: Any, text: Callable[[Any], str]) -> str:
    return ABSENT if value is None else text(value)
