"""Assignment of a run's processes to machines, GPUs and CPU threads."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.rl import RLConfig
from braidrl.launch.contract import Slot
from braidrl.utils.process import available_cores


@dataclass(frozen=True)
class Nodes:
    """Machines of a run. All have the same resources."""

    serving: range
    """Indices of the machines with inference servers. The first also runs the orchestrator."""
    training: range
    """Indices of the machines with trainer ranks."""
    cores: int
    """Number of CPUs per machine available to the run."""
    devices: int
    """Number of GPUs per machine available to the run."""

    @property
    def together(self) -> bool:
        """True if the same machines serve and train."""
        return self.serving == self.training


def machines_of(config: RLConfig) -> Nodes:
    """Return the machines of the configured launcher.

    For Ray, cores and devices are 0: a Ray node is chosen for the resources that each process requests.
    """
    if config.launcher == "ray":
        training = range(1, 1 + config.ray.trainer_nodes)
        return Nodes(range(1), training, cores=0, devices=0)
    if config.launcher == "slurm":
        job = config.slurm
        serving = range(job.inference_nodes)
        training = serving if job.nodes == 1 else range(job.inference_nodes, job.nodes)
        return Nodes(serving, training, job.cpus_per_task or available_cores(), job.gpus_per_node)
    return Nodes(range(1), range(1), available_cores(), len(visible_devices()))


def plan(config: RLConfig, machines: Nodes) -> list[Slot]:
    """Return all processes in start order. Raises `ConfigError` if they need more GPUs than a machine has."""
    per_machine = -(-config.inference.replicas // len(machines.serving))  # replicas per machine, rounded up
    first_rank = per_machine * config.inference.devices if machines.together else 0
    # The only GPU of a machine is used by both.
    if config.share_device or machines.devices == 1:
        first_rank = 0
    _check_devices(config, machines, per_machine, first_rank)
    serving_threads, training_threads = _threads(config, machines, per_machine)
    return [
        *_servers(config, machines, per_machine, serving_threads),
        Slot("orchestrator", "orchestrator", machine=machines.serving[0]),
        *_ranks(config, machines, first_rank, training_threads),
    ]


def _servers(config: RLConfig, machines: Nodes, per_machine: int, threads: int) -> Iterator[Slot]:
    """Yield the slots of inference servers, filling each machine with `per_machine` of them in turn."""
    count, size = config.inference.replicas, config.inference.devices
    fixed = "port" in config.inference.model_fields_set and config.inference.port != 0
    for index in range(count):
        first = index % per_machine * size
        yield Slot(
            "inference" if count == 1 else f"inference_{index}",
            "inference",
            index,
            machines.serving[index // per_machine],
            threads=threads,
            gpus=size,
            devices=tuple(range(first, first + size)) if machines.devices else (),
            port=config.inference.port + index if fixed else None,
        )


def _ranks(config: RLConfig, machines: Nodes, first: int, threads: int) -> Iterator[Slot]:
    """Yield the slots of trainer ranks.

    The GPUs of all ranks of a machine are visible to each of them. A rank uses the GPU of its local rank.
    """
    processes = config.trainer.parallel.processes
    for rank in range(processes * len(machines.training)):
        yield Slot(
            f"trainer_rank{rank}" if rank else "trainer",
            "trainer",
            rank,
            machines.training[rank // processes],
            rank % processes,
            threads=threads,
            gpus=1,
            devices=tuple(range(first, first + processes)) if machines.devices else (),
        )


def _check_devices(config: RLConfig, machines: Nodes, per_machine: int, first_rank: int) -> None:
    if not machines.devices:
        return
    ranks, size = config.trainer.parallel.processes, config.inference.devices
    for key, needed, what in (
        ("inference.replicas", per_machine * size, f"{per_machine} x {size} for inference"),
        (
            "trainer.parallel.processes",
            first_rank + ranks,
            f"{first_rank} for inference + {ranks} for training",
        ),
    ):
        if needed > machines.devices:
            raise ConfigError(
                key,
                f"each machine needs {needed} GPUs ({what}), but has {machines.devices}; lower "
                "inference.replicas, the parallel sizes of inference.vllm or trainer.parallel.processes, or use more "
                "machines",
            )


def _threads(config: RLConfig, machines: Nodes, per_machine: int) -> tuple[int, int]:
    """Return the CPU threads of a server and of a trainer rank.

    If inference and trainer share a machine and overlap in time, each side gets half of the cores. In strictly
    on-policy runs they alternate, so each side gets all cores.
    """
    server, rank = config.inference.threads, config.trainer.threads
    if config.launcher == "ray":
        return server or config.ray.cpus_per_process, rank or config.ray.cpus_per_process
    overlap = machines.together and config.orchestrator.max_off_policy_steps > 0
    share = machines.cores // 2 if overlap else machines.cores
    processes = config.trainer.parallel.processes
    return server or max(1, share // max(1, per_machine)), rank or max(1, share // processes)


def visible_devices() -> tuple[str, ...]:
    """Return the names of the GPUs visible to a process on this machine, in the format of `CUDA_VISIBLE_DEVICES`."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(name.strip() for name in named.split(",") if name.strip())
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(str(index) for index, _ in enumerate(listed.stdout.splitlines()))
