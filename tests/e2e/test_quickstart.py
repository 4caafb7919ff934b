"""What the README promises a new user."""

import subprocess
import sys
from pathlib import Path

import pytest

from braidrl.report.rewards import heldout_rewards
from braidrl.utils.run_folder import RunFolder

pytestmark = pytest.mark.e2e


@pytest.mark.timeout(900)
def test_quickstart_learns(tmp_path: Path) -> None:
    """Held-out reward rises by at least 0.25 over the warm-up model."""
    folder = tmp_path / "quickstart"
    command = [sys.executable, "-m", "braidrl.cli", "quickstart", "--output-dir", str(folder), "--seed", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, done.stdout + done.stderr
    rewards = heldout_rewards(RunFolder(folder / "rl"), "heldout")
    assert rewards[-1].mean - rewards[0].mean >= 0.25
    assert f"{rewards[-1].mean:.3f}" in done.stdout
    assert (folder / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert "before" in done.stdout and "after" in done.stdout and "what to try next" in done.stdout
