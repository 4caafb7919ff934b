"""Data parallelism: one process by default; the same code runs under `torchrun` with its parameters sharded (FSDP2)."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


@dataclass(frozen=True)
class Parallel:
    """This process among the `world_size` that train together."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def leads(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sum each value over all processes, in float64. Every process passes the same names."""
        if self.world_size == 1:
            return dict(values)
        names = sorted(values)
        # float64 travels through the CPU group on every backend
        total = torch.tensor([values[name] for name in names], dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return dict(zip(names, total.tolist(), strict=True))

    def barrier(self) -> None:
        """Wait for every process."""
        if self.world_size > 1:
            dist.barrier()


@contextmanager
def data_parallel(timeout: float = 600.0) -> Iterator[Parallel]:
    """Join the processes that `torchrun` started (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`); without it, be the only one.

    A collective that takes longer than `timeout` seconds, because another process died, is an error.
    """
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield Parallel(device=device)
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    try:
        yield Parallel(dist.get_rank(), world_size, device)
    finally:
        dist.destroy_process_group()


def shard(
    policy: nn.Module, layers: Iterable[nn.Module], parallel: Parallel, compute_dtype: torch.dtype
) -> None:
    """Shard the parameters of `policy` in place; each of `layers` is gathered by itself while it computes.

    Parameters and their gradients stay float32 and are reduced in float32; layers compute in `compute_dtype`. Gradients
    are summed over processes, not averaged, since the loss is divided by global counts. One process: nothing to do.
    """
    if parallel.world_size == 1:
        return
    mesh = init_device_mesh(parallel.device.type, (parallel.world_size,))
    precision = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    for module in (*layers, policy):
        fully_shard(module, mesh=mesh, mp_policy=precision)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # gloo and NCCL both sum; a factor of their own is NCCL's alone
            module.set_force_sum_reduction_for_comms(True)


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor of a shard, on every process (all call it together); any other tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sharded_like(tensor: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """This process's shard of a whole tensor, laid out as `example` is."""
    if not isinstance(example, DTensor):
        return tensor.to(example.device)
    mesh = example.device_mesh
    return distribute_tensor(tensor.to(mesh.device_type), mesh, example.placements, src_data_rank=None)
