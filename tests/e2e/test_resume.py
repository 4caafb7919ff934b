"""A run that stops and continues, by itself or by force, is the run that did not stop."""

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
# Which requests share a batch changes the sampler's log-probs by rounding. AdamW divides by the size of a
# gradient: where that is rounding itself, so would be the step, were it not for a larger eps.
SYNCHRONOUS = (
    *("--orchestrator.max_off_policy_steps", "0"),
    *("--trainer.optim.eps", "1e-5"),
    *("--checkpoint.interval", "1"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Launch:
    """A strictly on-policy run that nothing interrupted. Do not write into it."""
    launch = Launch(tmp_path_factory.mktemp("whole"), tiny_model_dir)
    launch.finish(*SYNCHRONOUS, "--max_steps", str(STEPS))
    return launch


def prompts_and_replies(launch: Launch, step: int) -> list[list[int]]:
    """Token ids of every episode of a step, in dispatch order."""
    traces = [trace for record in launch.episodes(step) for trace in record["traces"]]
    return [[token for node in trace["nodes"] for token in node["token_ids"]] for trace in traces]


def check_same(launch: Launch, whole: Launch) -> None:
    """Every step saw the same tokens and had the same loss, and the final weights are the same."""
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
    """Every step was taken once, by versions that only go up, and no task is lost."""
    for process in ("trainer", "orchestrator"):
        assert [row["step"] for row in launch.rows(process)] == list(range(1, STEPS + 1))
    served = [row["policy/version"] for row in launch.rows("orchestrator")]
    assert all(before <= after for before, after in pairwise(served))
    assert launch.run.checkpoints()[-1] == STEPS
    assert check_accounts(launch.run)["trained"] >= STEPS * 16 / 4


def kill_everything(launch: Launch, moments: list[float], step_seconds: float, *flags: str) -> list[int]:
    """Start the run, kill all its processes at each moment (in steps, counted from the start of the run), and let it
    end. Return the last checkpoint before each start."""
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
    """With a limit of 0, step n is sampled by v(n-1) alone, and the log says so."""
    assert [row["staleness/max"] for row in whole.rows("trainer")] == [0] * STEPS
    log = whole.run.log("orchestrator").read_text()
    for step in range(1, STEPS + 1):
        assert f"traces sampled by v{step - 1} train v{step - 1} -> v{step}" in log


def test_a_run_in_two_parts_equals_the_whole(whole: Launch, tmp_path: Path, tiny_model_dir: Path) -> None:
    """FIELD_CASES 46."""
    halves = Launch(tmp_path, tiny_model_dir)
    halves.finish(*SYNCHRONOUS, "--max_steps", str(STEPS // 2))
    output = halves.finish(*SYNCHRONOUS, "--max_steps", str(STEPS), "--resume")
    assert f"continuing after step {STEPS // 2}" in output
    check_same(halves, whole)


def test_a_run_by_turns_on_one_device_equals_the_whole(
    whole: Launch, tmp_path: Path, tiny_model_dir: Path
) -> None:
    """Trainer and inference share a device; the engine sleeps once a step."""
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
