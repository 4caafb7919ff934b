"""Documentation of losses: names of all metrics, and the example of a custom loss."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from braidrl.configs.plugins import LOSSES
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.loss import LossInputs
from braidrl.trainer.rl.metrics import staleness_metrics
from braidrl.trainer.rl.step import Learner
from braidrl.transport.types import TrainingSample
from tests.support.paths import DOCS
from tests.support.trainer_batches import make_batch, make_sample, trainer_config

OF_THE_LOOP = {"time/wait", "time/publish"}
"""Metrics of the trainer loop, which `step` does not return."""


def step(model: Path, samples: list[TrainingSample], **changes: object) -> dict[str, float]:
    config = trainer_config(model, Path("unused"), **changes)
    return Learner.load(config, Parallel(0, 1, torch.device("cpu"))).step(1, samples)


def with_head(sample: TrainingSample) -> TrainingSample:
    rows = int(sample.mask.sum())
    sample.head_ids = np.tile(np.arange(2, dtype=np.int32), (rows, 1))
    sample.head_logprobs = np.log(np.full((rows, 2), 0.1, np.float32))
    return sample


@pytest.fixture(scope="module")
def reported(tiny_model_dir: Path) -> set[str]:
    """Names of the metrics of all losses, off-policy protections and regularisers."""
    centered = {"type": "icepop", "score_centering": True, "score_centering_topk": 2}
    protections = {"is_correction": {}, "m2po": {}, "opsm": {}, "reference_kl": {"path": str(tiny_model_dir)}}
    rows = [
        step(tiny_model_dir, [with_head(make_sample(1))], loss=centered),
        step(tiny_model_dir, make_batch(3), loss={"type": "grpo"}, entropy_coef=0.1, **protections),
        staleness_metrics(1, make_batch(3)),
    ]
    return {name for row in rows for name in row} | OF_THE_LOOP


def test_every_metric_of_the_trainer_is_explained_by_its_name(reported: set[str]) -> None:
    text = (DOCS / "metrics.md").read_text()
    table = text[text.index("## `trainer.jsonl`") : text.index("## `orchestrator.jsonl`")]
    cells = [row.split(" | ")[0] for row in table.splitlines() if row.startswith("| `")]
    names = {name for cell in cells for name in re.findall(r"`([a-z0-9_/]+)`", cell)}
    assert len(names) > 40 and names == {name for name in reported if "/env/" not in name}


def test_every_metric_of_a_loss_exists(reported: set[str]) -> None:
    """Checks the names in paragraphs that begin with "Metric" or "Metrics", except names of losses and keys."""
    text = (DOCS / "losses.md").read_text()
    paragraphs = re.findall(r"^(?:Metrics?\b.*|Its metrics .*)\n(?:.+\n)*", text, re.MULTILINE)
    named = {name for part in paragraphs for name in re.findall(r"`([a-z0-9_/]+)`", part)}
    assert len(paragraphs) > 6
    assert named - reported <= {*LOSSES, "old", "score_centering_topk"}


def test_every_loss_has_its_section() -> None:
    sections = re.findall(r"^### `(\w+)`", (DOCS / "losses.md").read_text(), re.MULTILINE)
    assert {*LOSSES} - {"custom"} <= {*sections}


def test_the_own_loss_trains(tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "losses.md").read_text().split("\n## Your own\n")[1]
    (tmp_path / "my_module.py").write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    loss = tomllib.loads(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0])["trainer"]["loss"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    ours = step(tiny_model_dir, make_batch(3, "rl"), loss=loss)
    theirs = step(tiny_model_dir, make_batch(3, "rl"), loss={"type": "ipo", "eps": 1.0})
    sys.modules.pop("my_module", None)
    assert ours["bounded"] == 0
    for name in ("loss/rl", "grad_norm"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-5)


def test_the_loss_of_a_package_is_one() -> None:
    text = (DOCS / "extending.md").read_text().split("\n## A loss\n")[1]
    config, loss = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(config, names)
    exec(loss, names)
    settings = names["CautiousConfig"](bound=1.5)
    assert settings.type == "cautious" and settings.loss_function.endswith(":cautious_loss")
    x, mu = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True), torch.tensor([-1.0, -3.0, torch.nan])
    inputs = LossInputs(x, mu, None, torch.tensor([2.0, 4.0, 1.0]), mu.isfinite(), torch.ones(3))
    outputs = names["cautious_loss"](inputs, settings)
    outputs.loss.backward()
    assert (outputs.loss.item(), x.grad.tolist()) == (-8.0, [-2.0, 0.0, 0.0])
    assert outputs.metrics["bounded"].tolist() == [1, 2]
