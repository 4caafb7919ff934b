"""Plot the curves of docs/algorithms.md from the runs of `check.py`.

python examples/curves.py outputs/check curves.png
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

from braidrl.monitors.metrics import read_metrics
from braidrl.utils.run_folder import RunFolder

GRID = (2, 4)
"""Rows and columns of panels."""


class Curve(NamedTuple):
    example: str
    title: str
    process: str
    metric: str


CURVES = (
    Curve("grpo", "grpo: reward", "orchestrator", "reward/mean"),
    Curve("max_rl", "max_rl: reward", "orchestrator", "reward/mean"),
    Curve("hierarchical_grpo", "hierarchical_grpo: solved", "orchestrator", "metric/proposer-solver/solved"),
    Curve("echo", "echo: reward", "orchestrator", "reward/mean"),
    Curve("opd", "opd: ref_kl to the teacher", "trainer", "ref_kl"),
    Curve("opsd", "opsd: ref_kl to itself with the answer", "trainer", "ref_kl"),
    Curve("sft", "sft: nll of the teacher's tokens", "trainer", "nll"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checked", type=Path, help="output folder of check.py")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    options = parser.parse_args()
    draw(options.checked, options.picture)


def draw(checked: Path, picture: Path) -> None:
    """Plot one panel per algorithm with one line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(*GRID, figsize=(13, 5.6), dpi=80, layout="constrained")
    *first, last = panels.flat
    for panel, curve in zip(first, CURVES, strict=True):
        for run in sorted(checked.glob(f"seed_*/outputs/{curve.example}/rl")):
            panel.plot(*points(run, curve), label=run.parts[-4].replace("_", " "))
        panel.set(title=curve.title, ylim=(0, None), xlabel="step")
    for seed, before, after in exploitability(checked):
        last.plot(["warm-up", "final"], [before, after], marker="o", label=f"seed {seed}")
    last.set(title="rae: exploitability, in chips", ylim=(0, None))
    for panel in panels.flat:
        panel.grid(alpha=0.3)
        panel.title.set_fontsize(10)
    last.legend(loc="lower left")
    figure.savefig(picture)
    pyplot.close(figure)


def points(run: Path, curve: Curve) -> tuple[list[float], list[float]]:
    """Return the steps that have the metric, and its values."""
    rows: list[dict[str, Any]] = read_metrics(RunFolder(run).metrics(curve.process))
    found = [(row["step"], row[curve.metric]) for row in rows if row.get(curve.metric) is not None]
    return [step for step, _ in found], [value for _, value in found]


def exploitability(checked: Path) -> list[tuple[int, float, float]]:
    """Return (seed, before, after) of `rae`. In self-play, the mean reward is always 0 and shows no progress."""
    rows = [json.loads(line) for line in (checked / "results.jsonl").read_text().splitlines()]
    measured = sorted((row["seed"], row["measures"][0]) for row in rows if row["example"] == "rae")
    return [(seed, measure["before"], measure["after"]) for seed, measure in measured]


if __name__ == "__main__":
    main()
