"""A run as one SLURM job: a script that starts `braid rl` on the first node, which starts everything else by `srun`."""

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
PORTS_OF_A_JOB = 64
"""Jobs that share a node get ports of their own: 64 each, by job number, below those that systems give out freely."""
JOBS = 256
SCRIPT = "job.sh"


def script(config: RLConfig, python: str) -> str:
    """The job's script, for the resolved config in the run folder. Raises `ConfigError` where the nodes have not
    enough GPUs."""
    run = RunFolder(config.output_dir)
    command = [python, "-m", "braidrl.cli", "rl", "@", str(run.configs / "rl.toml"), "--in-job", "--resume"]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in _options(config, run)),
        "",
        *_comments(config),
        "set -euo pipefail",
        *config.slurm.setup,
        "# --resume: a job that is queued again goes on from the newest checkpoint",
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
    """What will run where."""
    for slot in plan(config, machines_of(config)):
        gpus = f", GPUs {','.join(map(str, slot.devices))}" if slot.devices else ""
        yield f"# {slot.name}: node {slot.machine}{gpus}"


def show(config: RLConfig) -> int:
    """`--dry-run`: print the script."""
    print(script(config, sys.executable), end="")
    return 0


def submit(config: RLConfig, resolved: str, options: LaunchOptions) -> int:
    """Write config and script into the run folder and hand the script to `sbatch`; exit code 0 when it took it."""
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
            f"there is no sbatch on this machine; submit {path} from one that has it, or look at it with --dry-run",
        ) from None
    except subprocess.CalledProcessError as error:
        print(f"braid rl: error: sbatch {path} ended with exit code {error.returncode}", file=sys.stderr)
        return 1
    print(f"run folder {run.root}; progress stands in {run.log('slurm')}")
    return 0


class SlurmLauncher(LocalLauncher):
    """The nodes of the job that this process runs in, by number; every process is a step of the job."""

    def __init__(self, config: RLConfig) -> None:
        super().__init__(config.stop_timeout)
        self.job = config.slurm
        self.hosts = job_hosts()
        if len(self.hosts) != self.job.nodes:
            raise ConfigError(
                "slurm.nodes", f"is {self.job.nodes}, but the job has {len(self.hosts)}; submit it again"
            )

    def _choose(self, slot: Slot) -> Placement:
        """The node of the slot. No port can be tried out there from here: those of the job are given in turn."""
        job = int(os.environ["SLURM_JOB_ID"])
        port = FIRST_PORT + job % JOBS * PORTS_OF_A_JOB + len(self.places) % PORTS_OF_A_JOB
        return Placement(self.hosts[slot.machine], slot.port or port)

    def command(self, process: Process) -> list[str]:
        """A step that shares its node with the others: they see all its GPUs, and use those of their slot."""
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
    """Names of the job's nodes, in order."""
    listed = subprocess.run(
        ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return listed.stdout.split()
