"""Which processes a run has, and what each gets of the machines: pure arithmetic."""

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
    """The machines of a run, all alike."""

    serving: range
    """Numbers of those with inference servers; the first has the orchestrator too."""
    training: range
    """Numbers of those with trainer ranks."""
    cores: int
    """CPUs of each that the run may use."""
    devices: int
    """GPUs of each that the run may use; 0: none."""

    @property
    def together(self) -> bool:
        """Whether the same ones serve and train."""
        return self.serving == self.training


def machines_of(config: RLConfig) -> Nodes:
    """Those that the launcher of the config has. Ray's take what a process asks for, whatever they are."""
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
    """All processes, in the order of their start. Raises `ConfigError` where they need more GPUs than there are."""
    served = -(-config.inference.replicas // len(machines.serving))
    first_rank = served * config.inference.devices if machines.together else 0
    if config.share_device or machines.devices == 1:
        first_rank = 0
    _check_devices(config, machines, served, first_rank)
    serving_threads, training_threads = _threads(config, machines, served)
    return [
        *_servers(config, machines, served, serving_threads),
        Slot("orchestrator", "orchestrator", machine=machines.serving[0]),
        *_ranks(config, machines, first_rank, training_threads),
    ]


def _servers(config: RLConfig, machines: Nodes, served: int, threads: int) -> Iterator[Slot]:
    """`served` replicas on each machine, until there are enough."""
    count, size = config.inference.replicas, config.inference.devices
    fixed = "port" in config.inference.model_fields_set and config.inference.port != 0
    for index in range(count):
        first = index % served * size
        yield Slot(
            "inference" if count == 1 else f"inference_{index}",
            "inference",
            index,
            machines.serving[index // served],
            threads=threads,
            gpus=size,
            devices=tuple(range(first, first + size)) if machines.devices else (),
            port=config.inference.port + index if fixed else None,
        )


def _ranks(config: RLConfig, machines: Nodes, first: int, threads: int) -> Iterator[Slot]:
    """All ranks of a machine see all of their GPUs there, and compute on that of their local rank."""
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


def _check_devices(config: RLConfig, machines: Nodes, served: int, first_rank: int) -> None:
    if not machines.devices:
        return
    ranks, size = config.trainer.parallel.processes, config.inference.devices
    for key, needed, what in (
        ("inference.replicas", served * size, f"{served} x {size} for inference"),
        (
            "trainer.parallel.processes",
            first_rank + ranks,
            f"{first_rank} for inference + {ranks} for training",
        ),
    ):
        if needed > machines.devices:
            raise ConfigError(
                key,
                f"a machine would need {needed} GPUs ({what}), and has {machines.devices}; lower inference.replicas, "
                "inference.vllm's parallel sizes or trainer.parallel.processes, or take more machines",
            )


def _threads(config: RLConfig, machines: Nodes, served: int) -> tuple[int, int]:
    """Threads of a server and of a rank. On the same machine, overlapping processes split the cores; strictly on-policy
    ones take turns with all of them."""
    server, rank = config.inference.threads, config.trainer.threads
    if config.launcher == "ray":
        return server or config.ray.cpus_per_process, rank or config.ray.cpus_per_process
    overlap = machines.together and config.orchestrator.max_off_policy_steps > 0
    share = machines.cores // 2 if overlap else machines.cores
    processes = config.trainer.parallel.processes
    return server or max(1, share // max(1, served)), rank or max(1, share // processes)


def visible_devices() -> tuple[str, ...]:
    """Names of this machine's GPUs, as `CUDA_VISIBLE_DEVICES` spells them, that a process started here would see."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(name.strip() for name in named.split(",") if name.strip())
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(str(index) for index, _ in enumerate(listed.stdout.splitlines()))
