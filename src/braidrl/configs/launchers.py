"""Launchers, which start the processes of a run on a Ray cluster or in a SLURM job."""

from typing import Self

from pydantic import Field, model_validator

from braidrl.configs.core.base import BaseConfig


class RayConfig(BaseConfig):
    """`launcher = "ray"`: an existing Ray cluster whose nodes share a file system and have this environment."""

    address: str = Field("auto", pattern=r"^(auto|.+:\d+)$")
    """Address of the cluster: `HOST:PORT` of its head node, or `auto` for the cluster of this machine."""
    trainer_nodes: int = Field(1, ge=1)
    """Number of trainer nodes, each with `trainer.parallel.processes` ranks."""
    cpus_per_process: int = Field(1, ge=1)
    """Number of CPUs to reserve for a process whose `threads` is not set. It then uses as many threads."""
    env: list[str] = Field(default_factory=list)
    """Names of environment variables to copy from the launcher to all processes. Others come from each node."""
    placement_timeout: float = Field(600.0, gt=0)
    """Maximum wait for free resources for a process, in seconds."""
    max_resumes: int = Field(0, ge=0)
    """Maximum number of automatic resumes from the newest checkpoint after the trainer or orchestrator is lost."""


class SlurmConfig(BaseConfig):
    """`launcher = "slurm"`: one job, whose nodes share a file system and have this environment."""

    job_name: str = "braid"
    """Job name."""
    partition: str | None = None
    """Partition. None: the cluster's default."""
    account: str | None = None
    """Account to charge. None: the user's default."""
    time: str | None = None
    """Time limit in the format of `sbatch` (`1-12:00:00`). None: the limit of the partition."""
    nodes: int = Field(1, ge=1)
    """Number of nodes. 1: all processes run on one node."""
    trainer_nodes: int = Field(1, ge=1)
    """Number of trainer nodes, if `nodes` is above 1: the last ones of the job. The others run inference, the first one
    also the orchestrator."""
    gpus_per_node: int = Field(0, ge=0)
    """Number of GPUs to request per node."""
    cpus_per_task: int | None = Field(None, ge=1)
    """Number of CPUs to request per node. None: the cluster's default."""
    setup: list[str] = Field(default_factory=list)
    """Shell commands to run before the run starts, such as `module load cuda` or `source .venv/bin/activate`."""
    sbatch: list[str] = Field(default_factory=list)
    """Additional options of `sbatch`, without `#SBATCH` (`--qos=high`)."""

    @model_validator(mode="after")
    def _check_inference_nodes(self) -> Self:
        if 1 < self.nodes <= self.trainer_nodes:
            raise ValueError(
                f"trainer_nodes ({self.trainer_nodes}) leaves none of the {self.nodes} nodes to inference; lower "
                "trainer_nodes, or raise nodes"
            )
        return self

    @property
    def inference_nodes(self) -> int:
        """Number of nodes with inference servers, the first ones of the job."""
        return 1 if self.nodes == 1 else self.nodes - self.trainer_nodes
