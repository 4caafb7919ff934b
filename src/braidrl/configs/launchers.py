"""Where the processes of a run are started: on this machine, on a Ray cluster, or by SLURM."""

from typing import Self

from pydantic import Field, model_validator

from braidrl.configs.core.base import BaseConfig


class RayConfig(BaseConfig):
    """`launcher = "ray"`: an existing Ray cluster whose nodes share a file system and have this environment."""

    address: str = Field("auto", pattern=r"^(auto|.+:\d+)$")
    """The cluster: `auto` for the one that this machine belongs to, or `HOST:PORT` of its head."""
    trainer_nodes: int = Field(1, ge=1)
    """Nodes that train, each with `trainer.parallel.processes` ranks."""
    cpus_per_process: int = Field(1, ge=1)
    """CPUs that are reserved for a process that has no `threads`, which are then as many."""
    env: list[str] = Field(default_factory=list)
    """Names of environment variables that every process gets from the launcher; others it has from its node."""
    placement_timeout: float = Field(600.0, gt=0)
    """Longest wait for the cluster to have room for a process, in seconds."""
    max_resumes: int = Field(0, ge=0)
    """Times that a run whose trainer or orchestrator was lost goes on from its newest checkpoint by itself."""


class SlurmConfig(BaseConfig):
    """`launcher = "slurm"`: one job, whose nodes share a file system and have this environment."""

    job_name: str = "braid"
    """Name of the job."""
    partition: str | None = None
    """Partition; None: the cluster's default."""
    account: str | None = None
    """Account that pays; None: the user's default."""
    time: str | None = None
    """Time limit as `sbatch` takes it (`1-12:00:00`); None: the partition's."""
    nodes: int = Field(1, ge=1)
    """Nodes of the job. One: everything runs there."""
    trainer_nodes: int = Field(1, ge=1)
    """Of several nodes, the last ones, which train; the others serve, and the first one has the orchestrator too."""
    gpus_per_node: int = Field(0, ge=0)
    """GPUs of a node that the job takes; 0: none."""
    cpus_per_task: int | None = Field(None, ge=1)
    """CPUs of a node that the job takes; None: the cluster's default."""
    setup: list[str] = Field(default_factory=list)
    """Lines of shell before the run starts: `module load cuda`, `source .venv/bin/activate`."""
    sbatch: list[str] = Field(default_factory=list)
    """Further options of `sbatch`, a line each, without `#SBATCH` (`--qos=high`)."""

    @model_validator(mode="after")
    def _somebody_serves(self) -> Self:
        if 1 < self.nodes <= self.trainer_nodes:
            raise ValueError(
                f"trainer_nodes ({self.trainer_nodes}) leaves none of the {self.nodes} nodes to inference; lower it, "
                "or raise nodes"
            )
        return self

    @property
    def inference_nodes(self) -> int:
        """Nodes that serve, the first ones."""
        return 1 if self.nodes == 1 else self.nodes - self.trainer_nodes
