"""The plot of the examples' learning curves."""

import json
import re
from pathlib import Path

from braidrl.configs.plugins import ALGORITHMS, BUILT_IN
from braidrl.monitors.metrics import MetricsWriter
from braidrl.utils.run_folder import RunFolder
from curves import CURVES, draw, exploitability, points
from tests.support.paths import DOCS


def test_every_algorithm_has_a_curve_and_says_what_to_expect() -> None:
    built_in = {name for name, thing in ALGORITHMS.items() if thing.origin == BUILT_IN}
    assert {curve.example for curve in CURVES} | {"rae"} == built_in
    text = (DOCS / "algorithms.md").read_text()
    expected = text.split("\n## What to expect\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", expected, re.MULTILINE)) - {"type"} == built_in


def test_a_curve_skips_steps_without_its_metric_and_the_picture_is_drawn(tmp_path: Path) -> None:
    curve = CURVES[0]
    run = tmp_path / "seed_0" / "outputs" / curve.example / "rl"
    writer = MetricsWriter(RunFolder(run).metrics(curve.process))
    for step, values in enumerate(({curve.metric: 0.25}, {"other": 1.0}, {curve.metric: 0.5}), start=1):
        writer.log(step, values)
    row = {"example": "rae", "seed": 1, "measures": [{"before": 0.5, "after": 0.125}]}
    (tmp_path / "results.jsonl").write_text(json.dumps(row) + "\n")
    assert points(run, curve) == ([1, 3], [0.25, 0.5])
    assert exploitability(tmp_path) == [(1, 0.5, 0.125)]
    draw(tmp_path, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
