"""A SLURM job whose three nodes are all this machine, with fake `sbatch`, `srun` and `scontrol`."""

import os
from pathlib import Path

import pytest

from tests.support.accounts import check_accounts
from tests.support.runs import Launch

pytestmark = pytest.mark.slow

STEPS = 3
TOOLS = {
    # blocks until the job has ended
    "sbatch": 'echo "submitted $1"\nSLURM_JOB_ID=77 SLURM_JOB_NODELIST=all bash "$1" > "$JOB_OUTPUT" 2>&1\n',
    "scontrol": 'printf "127.0.0.1\\n127.0.0.2\\n127.0.0.3\\n"\n',
    # the first non-option is the command
    "srun": 'echo "$@" >> "$STEPS_OF_JOB"\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n',
}


def test_the_script_runs_a_whole_job(
    tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools, steps, job = tmp_path / "bin", tmp_path / "steps.txt", tmp_path / "job.txt"
    tools.mkdir()
    for name, text in TOOLS.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("STEPS_OF_JOB", str(steps))
    monkeypatch.setenv("JOB_OUTPUT", str(job))
    launch = Launch(tmp_path, tiny_model_dir)
    nodes = ("--launcher", "slurm", "--slurm.nodes", "3", "--slurm.cpus_per_task", "1")
    output = launch.finish("--max_steps", str(STEPS), "--inference.replicas", "2", *nodes, timeout=280.0)

    assert "submitted" in output and "progress is logged to" in output
    assert f"Finished {STEPS} steps" in job.read_text(), launch.report() + job.read_text()
    places = {
        words[4].split("=")[1]: words[3] for line in steps.read_text().splitlines() if (words := line.split())
    }
    assert places == {
        "inference_0": "--nodelist=127.0.0.1",
        "inference_1": "--nodelist=127.0.0.2",
        "orchestrator": "--nodelist=127.0.0.1",
        "trainer": "--nodelist=127.0.0.3",
    }
    for process in ("trainer", "orchestrator"):
        assert [row["step"] for row in launch.rows(process)] == list(range(1, STEPS + 1))
    check_accounts(launch.run)
    logs = {path.stem for path in launch.run.logs.iterdir()}
    assert {"inference_0", "inference_1", "orchestrator", "trainer"} <= logs
