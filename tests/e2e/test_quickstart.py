"""The quickstart of the README."""

import subprocess
from pathlib import Path

import pytest

from braidrl.report.rewards import heldout_rewards
from braidrl.utils.run_folder import RunFolder
from tests.support.wheel import build_wheel, install_wheel

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
def test_quickstart_of_an_installed_wheel_learns(tmp_path: Path) -> None:
    """In an empty folder, `braid quickstart` raises held-out reward by at least 0.25 over the warm-up model."""
    commands = install_wheel(build_wheel(tmp_path / "dist"), tmp_path / "environment")
    empty = tmp_path / "empty"
    empty.mkdir()
    where = [commands / "python", "-c", "import braidrl; print(braidrl.__file__)"]
    assert str(tmp_path) in subprocess.run(where, cwd=empty, capture_output=True, text=True).stdout
    done = subprocess.run(
        [commands / "braid", "quickstart", "--seed", "0"],
        cwd=empty,
        capture_output=True,
        text=True,
        timeout=880,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (output,) = empty.glob("outputs/*")
    rewards = heldout_rewards(RunFolder(output / "rl"), "heldout")
    assert rewards[-1].mean - rewards[0].mean >= 0.25
    assert f"{rewards[-1].mean:.3f}" in done.stdout
    assert (output / "reward.png").read_bytes().startswith(b"\x89PNG")
