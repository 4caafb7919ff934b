"""Every process killed at random moments, again and again: the run ends as if nobody had touched it."""

import os
import random
import signal
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.e2e.test_kill import process_ids
from tests.e2e.test_resume import SYNCHRONOUS, prompts_and_replies
from tests.support.accounts import check_accounts
from tests.support.runs import Launch, wait_until

pytestmark = pytest.mark.slow

STEPS = 20
EVERY_STEP = ("--max_steps", str(STEPS), "--checkpoint.interval", "1")


def kill_everything(launch: Launch, moments: list[float], step_seconds: float, *flags: str) -> list[int]:
    """Start the run, kill all its processes at each moment (in steps, counted from the start of the run), and let it
    end; returns the steps that each start had behind it."""
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


def check_story(launch: Launch) -> None:
    """Every step was taken once, by versions that only go up, and no task is lost."""
    for process in ("trainer", "orchestrator"):
        assert [row["step"] for row in launch.rows(process)] == list(range(1, STEPS + 1))
    served = [row["policy/version"] for row in launch.rows("orchestrator")]
    assert all(before <= after for before, after in pairwise(served))
    assert launch.run.checkpoints()[-1] == STEPS
    assert check_accounts(launch.run)["trained"] >= STEPS * 16 / 4


@pytest.mark.timeout(900)  # a dozen starts
def test_ten_kills_at_random_moments_change_nothing(tmp_path: Path, tiny_model_dir: Path) -> None:
    """Strictly on-policy: the final weights are those of the run that nobody touched."""
    rng = random.Random(0)
    moments = [rng.uniform(start, start + 2) for start in range(0, STEPS, 2)]
    whole, killed = Launch(tmp_path / "whole", tiny_model_dir), Launch(tmp_path / "killed", tiny_model_dir)
    flags = (*SYNCHRONOUS[:2], *SYNCHRONOUS[4:], *EVERY_STEP)
    whole.finish(*flags)
    step_seconds = sum(row["seconds/step"] for row in whole.rows("orchestrator")[1:]) / (STEPS - 1)
    behind = kill_everything(killed, moments, step_seconds, *flags)
    assert len(set(behind)) > 5, behind
    check_story(killed)
    for step in range(1, STEPS + 1):
        assert prompts_and_replies(whole, step) == prompts_and_replies(killed, step)
    weights = [load_file(launch.run.weights(STEPS) / "model.safetensors") for launch in (whole, killed)]
    for name, tensor in weights[0].items():
        np.testing.assert_allclose(weights[1][name], tensor, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.timeout(600)
def test_kills_of_a_run_that_overlaps_lose_no_step_and_no_task(tmp_path: Path, tiny_model_dir: Path) -> None:
    rng = random.Random(1)
    launch = Launch(tmp_path, tiny_model_dir)
    flags = ("--orchestrator.max_off_policy_steps", "2", *EVERY_STEP)
    moments = [rng.uniform(start, start + 6) for start in (1, 7, 13)]
    behind = kill_everything(launch, moments, 0.5, *flags)
    assert behind[0] == 0 < behind[1] < behind[2]
    check_story(launch)
    assert max(row["staleness/max"] for row in launch.rows("trainer")) <= 2
