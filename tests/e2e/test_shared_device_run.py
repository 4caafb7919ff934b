"""Trainer and inference on one device by turns: the same run, with the engine asleep while the trainer works."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.support.runs import Launch

pytestmark = pytest.mark.slow


def test_a_run_by_turns_trains_what_the_other_trains(tiny_model_dir: Path, tmp_path: Path) -> None:
    """Strictly on-policy runs repeat, so that their weights are equal; and the engine has slept once a step."""
    runs = {}
    for name, switch in (
        ("apart", ("--orchestrator.max_off_policy_steps", "0")),
        ("turns", ("--share_device", "true")),
    ):
        launch = Launch(tmp_path / name, tiny_model_dir)
        launch.finish("--max_steps", "3", *switch)
        runs[name] = launch
    apart, turns = (load_file(run.run.weights(3) / "model.safetensors") for run in runs.values())
    assert apart.keys() == turns.keys()
    for name, tensor in apart.items():
        np.testing.assert_allclose(turns[name], tensor, rtol=1e-5, atol=1e-6, err_msg=name)
    slept = {name: run.run.log("inference").read_text().count("asleep:") for name, run in runs.items()}
    assert slept == {"apart": 0, "turns": 3}
