"""Resumed runs, after a regular end or a kill, equal an uninterrupted run."""

import os
import random
import signal
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.accounts import check_accounts
from tests.support.runs import Launch, process_ids, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STEPS = 12
# The sampler's log-probs depend, by rounding, on which requests share a batch. AdamW divides by the size of a gradient,
# so without a larger eps, gradients that are pure rounding errors would cause steps of full size.
SYNCHRONOUS = (
    *("--orchestrator.max_off_policy_steps", "0"),
    *("--trainer.optim.eps", "1e-5"),
    *("--checkpoint.interval", "1"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Launch:
    """Uninterrupted strictly on-policy run; read only."""
    launch = Launch(tmp_path_factory.mktemp("whole"), tiny_model_dir)
    launch.finish(*SYNCHRONOUS, "--max_steps", str(STEPS))
    return launch


def prompts_and_replies(launch: Launch, step: int) -> list[list[int]]:
    """Return the token ids of every episode of a step, in dispatch order."""
    traces = [trace for record in launch.episodes(step) for trace in record["traces"]]
    return [[token for node in trace["nodes"] for token in node["token_ids"]] for trace in traces]


def check_same(launch: Launch, whole: Launch) -> None:
    """Assert that both runs have the same tokens and loss at every step, and the same final weights."""
    for step in range(1, STEPS + 1):
        assert prompts_and_replies(launch, step) == prompts_and_replies(whole, step)
    losses = [[row["loss"] for row in each.rows("trainer")] for each in (launch, whole)]
    assert len(losses[0]) == STEPS
    np.testing.assert_allclose(*losses, rtol=1e-5, atol=1e-7)
    weights = [load_file(each.run.weights(STEPS) / "model.safetensors") for each in (launch, whole)]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        np.testing.assert_allclose(weights[1][name], tensor, rtol=1e-5, atol=1e-6, err_msg=name)


def check_progress(launch: Launch) -> None:
    """Assert that every step was taken once, versions never decrease, and no task is lost."""
    for process in ("trainer", "orchestrator"):
        assert [row["step"] for row in launch.rows(process)] == list(range(1, STEPS + 1))
    served = [row["policy/version"] for row in launch.rows("orchestrator")]
    assert all(before <= after for before, after in pairwise(served))
    assert launch.run.checkpoints()[-1] == STEPS
    assert check_accounts(launch.run)["trained"] >= STEPS * 16 / 4


def kill_everything(launch: Launch, moments: list[float], step_seconds: float, *flags: str) -> list[int]:
    """Start the run, kill all its processes at each moment (in steps since the start of the run), then let it finish.
    Return the last checkpoint before each start."""
    behind = []
    for count, moment in enumerate(moments):
        behind.append(max(launch.run.checkpoints(), default=0))
        launcher = launch.start(*flags, *(["--resume"] if count else []))
        wait_until(lambda: len(process_ids(launch)) == 3, "the processes to start")
        wait_for_step(launch, int(moment))
        time.sleep(moment % 1 * step_seconds)
        for victim in (launcher.pid, *process_ids(launch).values()):
            os.kill(victim, signal.SIGKILL)
        launcher.wait()
        wait_until(lambda: process_ids(launch) == {}, "the processes to end", 20)
    launch.finish(*flags, "--resume")
    return behind


def wait_for_step(launch: Launch, step: int) -> None:
    wait_until(lambda: len(launch.rows("trainer")) >= step, f"step {step}\n{launch.report()}")


def test_strictly_on_policy_run_never_trains_stale_tokens(whole: Launch) -> None:
    """With a staleness bound of 0, only v(n-1) samples step n, as recorded in the metrics."""
    assert [row["staleness/max"] for row in whole.rows("trainer")] == [0] * STEPS
    log = whole.run.log("orchestrator").read_text()
    for step in range(1, STEPS + 1):
        assert f"traces sampled by v{step - 1} train v{step - 1} -> v{step}" in log


def test_a_run_in_two_parts_equals_the_whole(whole: Launch, tmp_path: Path, tiny_model_dir: Path) -> None:
    """Resuming from a checkpoint of another run (FIELD_CASES 46)."""
    halves = Launch(tmp_path, tiny_model_dir)
    halves.finish(*SYNCHRONOUS, "--max_steps", str(STEPS // 2))
    output = halves.finish(*SYNCHRONOUS, "--max_steps", str(STEPS), "--resume")
    assert f"continuing after step {STEPS // 2}" in output
    check_same(halves, whole)


def test_a_run_by_turns_on_one_device_equals_the_whole(
    whole: Launch, tmp_path: Path, tiny_model_dir: Path
) -> None:
    """Trainer and inference share a device, and the engine sleeps once per step."""
    turns = Launch(tmp_path, tiny_model_dir)
    turns.finish(*SYNCHRONOUS, "--share_device", "true", "--max_steps", str(STEPS))
    check_same(turns, whole)
    slept = [each.run.log("inference").read_text().count("asleep:") for each in (whole, turns)]
    assert slept == [0, STEPS]


def test_kills_at_random_moments_change_nothing(whole: Launch, tmp_path: Path, tiny_model_dir: Path) -> None:
    rng = random.Random(0)
    moments = [rng.uniform(start, start + 2) for start in range(0, STEPS, 2)]
    killed = Launch(tmp_path, tiny_model_dir)
    step_seconds = sum(row["seconds/step"] for row in whole.rows("orchestrator")[1:]) / (STEPS - 1)
    behind = kill_everything(killed, moments, step_seconds, *SYNCHRONOUS, "--max_steps", str(STEPS))
    assert len(set(behind)) > len(moments) / 2, behind
    check_progress(killed)
    check_same(killed, whole)


def test_kills_of_a_run_that_overlaps_lose_no_step_and_no_task(tmp_path: Path, tiny_model_dir: Path) -> None:
    rng = random.Random(1)
    launch = Launch(tmp_path, tiny_model_dir)
    flags = (
        "--orchestrator.max_off_policy_steps",
        "2",
        "--checkpoint.interval",
        "1",
        "--max_steps",
        str(STEPS),
    )
    moments = [rng.uniform(start, start + 4) for start in (1, 6)]
    behind = kill_everything(launch, moments, 0.5, *flags)
    assert behind[0] == 0 < behind[1]
    check_progress(launch)
    assert max(row["staleness/max"] for row in launch.rows("trainer")) <= 2
