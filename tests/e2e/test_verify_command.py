"""The command `braid verify`, on one and on two processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from braidrl.cli import main
from tests.support.runs import CONFIG

pytestmark = pytest.mark.slow

TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
REAL = "ranks: 2, real (FSDP2)"
UNEVEN_LOSS = """\
import os
from braidrl.trainer.rl.loss import LossOutputs
def loss(inputs):
    gain = inputs.advantages * (inputs.trainer_logprobs - inputs.inference_logprobs).exp()
    return LossOutputs(-(1 + int(os.environ.get("RANK", 0))) * gain[inputs.loss_mask].sum(), {})
"""


def run(model: Path, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run `braid verify` on two processes."""
    config = folder / "run.toml"
    config.write_text(CONFIG.format(model=model))
    command = [sys.executable, "-m", *TORCHRUN, "braidrl.cli", "verify", "@", str(config)]
    return subprocess.run(
        [*command, "--output_dir", str(folder / "run"), *flags],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_one_process(tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.format(model=tiny_model_dir))
    assert main(["verify", "@", str(config), "--output_dir", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if line.endswith("  ok")]
    assert len(lines) == 9 and "FAIL" not in printed
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"], "it writes nothing"


def test_two_processes(tiny_model_dir: Path, tmp_path: Path) -> None:
    flags = ["--json", "--trainer.loss.type", "gspo", "--trainer.loss_agg_mode", "seq-mean-token-mean"]
    done = run(tiny_model_dir, tmp_path, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert len(checks) == 10 and 0 <= checks[REAL]["worst"] < 1e-5


def test_two_processes_that_disagree(tiny_model_dir: Path, tmp_path: Path) -> None:
    """A loss that one rank computes differently fails on two processes, and passes all checks on one."""
    (tmp_path / "uneven.py").write_text(UNEVEN_LOSS)
    flags = [
        "--json",
        "--trainer.loss.type",
        "custom",
        "--trainer.loss.import_path",
        f"{tmp_path / 'uneven.py'}:loss",
    ]
    done = run(tiny_model_dir, tmp_path, *flags)
    assert done.returncode == 1, done.stdout + done.stderr
    failed = [check["name"] for check in json.loads(done.stdout)["checks"] if not check["ok"]]
    assert failed == [REAL]
