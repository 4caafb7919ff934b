"""A run that stops and continues is the run that did not stop."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.runs import Launch

pytestmark = pytest.mark.slow

# Which requests share a batch changes the sampler's log-probs by rounding. AdamW divides by the size of a
# gradient: where that is rounding itself, so would be the step, were it not for a larger eps.
SYNCHRONOUS = (
    "--orchestrator.max_off_policy_steps",
    "0",
    "--checkpoint.interval",
    "2",
    "--trainer.optim.eps",
    "1e-5",
)


def prompts_and_replies(launch: Launch, step: int) -> list[list[int]]:
    """Token ids of every episode of a step, in dispatch order."""
    traces = [trace for record in launch.episodes(step) for trace in record["traces"]]
    return [[token for node in trace["nodes"] for token in node["token_ids"]] for trace in traces]


def test_four_steps_equal_two_and_two(tmp_path: Path, tiny_model_dir: Path) -> None:
    """FIELD_CASES 46."""
    whole, halves = Launch(tmp_path / "whole", tiny_model_dir), Launch(tmp_path / "halves", tiny_model_dir)
    whole.finish(*SYNCHRONOUS, "--max_steps", "4")
    halves.finish(*SYNCHRONOUS, "--max_steps", "2")
    output = halves.finish(*SYNCHRONOUS, "--max_steps", "4", "--resume")
    assert "continuing after step 2" in output

    for step in range(1, 5):
        assert prompts_and_replies(whole, step) == prompts_and_replies(halves, step)
    losses = [[row["loss"] for row in launch.rows("trainer")] for launch in (whole, halves)]
    assert len(losses[0]) == 4
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5, atol=1e-7)
    weights = [load_file(launch.run.weights(4) / "model.safetensors") for launch in (whole, halves)]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        np.testing.assert_allclose(weights[1][name], tensor, rtol=1e-5, atol=1e-6, err_msg=name)


def test_strictly_on_policy_run_never_trains_stale_tokens(tmp_path: Path, tiny_model_dir: Path) -> None:
    """With a limit of 0, step n is sampled by v(n-1) alone, and the log says so."""
    launch = Launch(tmp_path, tiny_model_dir)
    launch.finish("--orchestrator.max_off_policy_steps", "0", "--max_steps", "3")
    assert [row["staleness/max"] for row in launch.rows("trainer")] == [0, 0, 0]
    log = launch.run.log("orchestrator").read_text()
    for step in (1, 2, 3):
        assert f"traces sampled by v{step - 1} train v{step - 1} -> v{step}" in log


def test_default_run_is_one_step_overlapped(tmp_path: Path, tiny_model_dir: Path) -> None:
    launch = Launch(tmp_path, tiny_model_dir)
    launch.finish("--max_steps", "6")
    staleness = [row["staleness/max"] for row in launch.rows("trainer")]
    assert max(staleness) == 1, staleness


def test_finished_run_is_not_overwritten(tmp_path: Path, tiny_model_dir: Path) -> None:
    launch = Launch(tmp_path, tiny_model_dir)
    launch.finish("--max_steps", "1")
    before = launch.run.metrics("trainer").read_bytes()
    assert launch.start("--max_steps", "1").wait(30) == 2
    assert "--resume" in launch.output.read_text() and "--clean" in launch.output.read_text()
    assert launch.run.metrics("trainer").read_bytes() == before
