"""Launcher for SLURM. The job script runs `braid rl` on the first node, which starts the other processes by `srun`."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.rl import RLConfig
from braidrl.launch.contract import Placement, Process, Slot
from braidrl.launch.local import LocalLauncher
from braidrl.launch.options import LaunchOptions
from braidrl.launch.plan import machines_of, plan
from braidrl.launch.resume import open_run_folder
from braidrl.utils.run_folder import RunFolder

FIRST_PORT = 10_000
PORTS_PER_JOB = 64
PORT_RANGES = 256
"""Number of port ranges. Jobs that share a node get different ranges, chosen by job id, which all lie below the
ephemeral ports of Linux (10,000 + 256 * 64 < 32,768)."""
SCRIPT = "job.sh"


def script(config: RLConfig, python: str) -> str:
    """Return the job script for the resolved config in the run folder.

    Raises `ConfigError` if the nodes do not have enough GPUs.
    """
    run = RunFolder(config.output_dir)
    command = [python, "-m", "braidrl.cli", "rl", "@", str(run.configs / "rl.toml"), "--in-job", "--resume"]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in _options(config, run)),
        "",
        *_comments(config),
        "set -euo pipefail",
        *config.slurm.setup,
        "# --resume: a requeued job continues from the newest checkpoint",
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"


def _options(config: RLConfig, run: RunFolder) -> Iterator[str]:
    job = config.slurm
    yield f"--job-name={job.job_name}"
    for name in ("partition", "account", "time"):
        if (value := getattr(job, name)) is not None:
            yield f"--{name}={value}"
    yield f"--nodes={job.nodes}"
    yield "--ntasks-per-node=1"
    if job.cpus_per_task is not None:
        yield f"--cpus-per-task={job.cpus_per_task}"
    if job.gpus_per_node:
        yield f"--gpus-per-node={job.gpus_per_node}"
    yield f"--output={shlex.quote(str(run.log('slurm')))}"
    yield "--open-mode=append"
    yield "--requeue"
    yield from job.sbatch


def _comments(config: RLConfig) -> Iterator[str]:
    """Yield a comment line with the node and GPUs of each process."""
    for slot in plan(config, machines_of(config)):
        gpus = f", GPUs {','.join(map(str, slot.devices))}" if slot.devices else ""
        yield f"# {slot.name}: node {slot.machine}{gpus}"


def show(config: RLConfig) -> int:
    """Print the job script, for `--dry-run`."""
    print(script(config, sys.executable), end="")
    return 0


def submit(config: RLConfig, resolved: str, options: LaunchOptions) -> int:
    """Write config and job script to the run folder and submit the script with `sbatch`. Return the exit code."""
    text = script(config, sys.executable)
    run = RunFolder(config.output_dir)
    open_run_folder(run, options)
    run.configs.mkdir(parents=True, exist_ok=True)
    run.logs.mkdir(parents=True, exist_ok=True)
    (run.configs / "rl.toml").write_text(resolved)
    path = run.configs / SCRIPT
    path.write_text(text)
    try:
        subprocess.run(["sbatch", str(path)], check=True)
    except FileNotFoundError:
        raise ConfigError(
            "launcher",
            f"there is no sbatch on this machine; submit {path} from a login node of the cluster, or print the script "
            "with --dry-run",
        ) from None
    except subprocess.CalledProcessError as error:
        print(f"braid rl: error: `sbatch {path}` ended with exit code {error.returncode}", file=sys.stderr)
        return 1
    print(f"run folder {run.root}; progress is logged to {run.log('slurm')}")
    return 0


class SlurmLauncher(LocalLauncher):
    """Launcher for the nodes of the current job, in which every process is a job step.

    Raises `ConfigError` if the number of nodes of the job differs from `slurm.nodes`.
    """

    def __init__(self, config: RLConfig) -> None:
        super().__init__(config.stop_timeout)
        self.job = config.slurm
        self.hosts = job_hosts()
        if len(self.hosts) != self.job.nodes:
            raise ConfigError(
                "slurm.nodes",
                f"is {self.job.nodes}, but the job has {len(self.hosts)} nodes; submit the run again",
            )

    def _choose(self, slot: Slot) -> Placement:
        """Return the node of the slot and the next port of the job.

        Ports are assigned in turn because this process cannot test whether a port is free on another node.
        """
        job = int(os.environ["SLURM_JOB_ID"])
        port = FIRST_PORT + job % PORT_RANGES * PORTS_PER_JOB + len(self.places) % PORTS_PER_JOB
        return Placement(self.hosts[slot.machine], slot.port or port)

    def command(self, process: Process) -> list[str]:
        """Return the `srun` command of a step that shares its node (`--overlap`).

        The step is granted all GPUs of the node; `CUDA_VISIBLE_DEVICES` limits it to those of its slot.
        """
        gpus = [f"--gpus-per-node={self.job.gpus_per_node}"] if self.job.gpus_per_node else []
        return [
            "srun",
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={self.places[process.name].host}",
            f"--job-name={process.name}",
            "--mem=0",
            "--cpu-bind=none",
            "--kill-on-bad-exit=1",
            "--export=ALL",
            *gpus,
            *super().command(process),
        ]


def job_hosts() -> list[str]:
    """Return the host names of the job's nodes, in order."""
    listed = subprocess.run(
        ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return listed.stdout.split()
