"""The SLURM job script and the commands of job steps."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from braidrl.cli import main
from braidrl.configs.core.errors import ConfigError
from braidrl.configs.rl import RLConfig
from braidrl.launch.contract import Placement, Process, Slot
from braidrl.launch.slurm import SlurmLauncher, script
from tests.support.paths import REPOSITORY
from tests.unit.launch.test_plan import config_of

RECIPE = REPOSITORY / "examples" / "grpo" / "rl.toml"

CLUSTER = {
    "output_dir": "/scratch/run",
    "launcher": "slurm",
    "slurm": {
        "partition": "gpu",
        "account": "lab",
        "time": "12:00:00",
        "nodes": 3,
        "gpus_per_node": 4,
        "cpus_per_task": 64,
        "setup": ["module load cuda", ". /shared/venv/bin/activate"],
        "sbatch": ["--qos=high"],
    },
    "inference": {"engine": "vllm", "replicas": 3, "vllm": {"tensor_parallel_size": 2}},
    "trainer": {"parallel": {"processes": 4}},
}

GOLDEN = """\
#!/bin/bash
#SBATCH --job-name=braid
#SBATCH --partition=gpu
#SBATCH --account=lab
#SBATCH --time=12:00:00
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=4
#SBATCH --output=/scratch/run/logs/slurm.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --qos=high

# inference_0: node 0, GPUs 0,1
# inference_1: node 0, GPUs 2,3
# inference_2: node 1, GPUs 0,1
# orchestrator: node 0
# trainer: node 2, GPUs 0,1,2,3
# trainer_rank1: node 2, GPUs 0,1,2,3
# trainer_rank2: node 2, GPUs 0,1,2,3
# trainer_rank3: node 2, GPUs 0,1,2,3
set -euo pipefail
module load cuda
. /shared/venv/bin/activate
# --resume: a requeued job continues from the newest checkpoint
exec /shared/venv/bin/python -m braidrl.cli rl @ /scratch/run/config/rl.toml --in-job --resume
"""


def cluster(**more: Any) -> RLConfig:
    return config_of(**{**CLUSTER, **more})


def test_script_equals_the_golden_one() -> None:
    assert script(cluster(), "/shared/venv/bin/python") == GOLDEN


@pytest.mark.parametrize("slurm", [CLUSTER["slurm"], {}], ids=["all", "defaults"])
def test_script_is_valid_shell(slurm: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(script(cluster(slurm=slurm, output_dir="a run/it's"), "/bin/python 3"))
    subprocess.run(["bash", "-n", str(path)], check=True)
    if linter := shutil.which("shellcheck"):
        subprocess.run([linter, "--exclude=SC1091", str(path)], check=True)


def test_dry_run_prints_the_script_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    flags = ["--launcher", "slurm", "--slurm.nodes", "2", "--output_dir", str(out)]
    assert main(["rl", "@", str(RECIPE), *flags, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("#!/bin/bash\n") and "#SBATCH --nodes=2\n" in printed
    assert "# inference: node 0\n# orchestrator: node 0\n# trainer: node 1\n" in printed
    assert not out.exists()


def test_script_is_written_even_without_sbatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "run"
    assert main(["rl", "@", str(RECIPE), "--launcher", "slurm", "--output_dir", str(out)]) == 2
    assert f"there is no sbatch on this machine; submit {out}/config/job.sh" in capsys.readouterr().err
    assert (out / "config" / "rl.toml").is_file()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment of a job with three nodes."""
    tool = tmp_path / "scontrol"
    tool.write_text('#!/bin/sh\n[ "$*" = "show hostnames n[1-3]" ] && printf "n1\\nn2\\nn3\\n"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "1000")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-3]")


def test_process_runs_as_a_step_on_its_node_and_gpus(job: None, tmp_path: Path) -> None:
    launcher = SlurmLauncher(cluster())
    first = launcher.place(Slot("inference_0", "inference", devices=(0, 1)))
    place = launcher.place(Slot("trainer_rank1", "trainer", 1, machine=2, devices=(2, 3)))
    assert (first, place) == (Placement("n1", 10_000 + 1000 % 256 * 64), Placement("n3", first.port + 1))
    assert launcher.place(Slot("trainer_rank1", "trainer", 1, machine=2, devices=(2, 3))) == place
    command = launcher.command(Process("trainer_rank1", ("trainer", "@", "x"), tmp_path / "log", {}))
    assert command[0] == "srun" and {"--overlap", "--nodelist=n3", "--gpus-per-node=4"} <= set(command)
    assert command[command.index("env") :] == [
        "env",
        "CUDA_VISIBLE_DEVICES=2,3",
        sys.executable,
        "-m",
        "braidrl.cli",
        "trainer",
        "@",
        "x",
    ]


def test_job_with_another_number_of_nodes_is_rejected(job: None) -> None:
    with pytest.raises(ConfigError, match="is 2, but the job has 3"):
        SlurmLauncher(cluster(slurm={"nodes": 2}))
