"""Data parallelism: one process by default; under `torchrun` the same code with sharded parameters."""

import os
from collections.abc import Iterable, Iterator
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

    rank: int
    world_size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    def all_reduce(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of `values` over all processes."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def union(self, names: Iterable[str]) -> list[str]:
        """All names that any process has, sorted."""
        mine = sorted(names)
        if self.world_size == 1:
            return mine
        text = torch.frombuffer(bytearray("\n".join(mine).encode()) or bytearray(b"\n"), dtype=torch.uint8)
        size = torch.tensor([len(text)], device=self.device)
        dist.all_reduce(size, dist.ReduceOp.MAX)
        padded = torch.full((int(size),), ord("\n"), dtype=torch.uint8, device=self.device)
        padded[: len(text)] = text
        parts = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(parts, padded)
        found = {name for part in parts for name in bytes(part.tolist()).decode().split("\n") if name}
        return sorted(found)

    def barrier(self) -> None:
        """Wait for every process."""
        if self.world_size > 1:
            dist.barrier()


@contextmanager
def data_parallel(timeout: float = 600.0) -> Iterator[Parallel]:
    """Join the processes that `torchrun` started (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`), or be the only one.

    A collective that takes longer than `timeout` seconds, because another process died, is an error.
    """
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield Parallel(0, 1, device)
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

    Parameters and gradients stay float32 and are reduced in float32; layers travel and compute in
    `compute_dtype`. Gradients are summed over processes, not averaged, since the loss is divided by global
    counts. With one process there is nothing to do.
    """
    if parallel.world_size == 1:
        return
    mesh = init_device_mesh(parallel.device.type, (parallel.world_size,))
    # the residual stream between layers, the embeddings and the head stay float32, as in one process
    precision = MixedPrecisionPolicy(
        param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(policy, mesh=mesh)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # gloo and NCCL both sum; a factor of their own is NCCL's alone
            module.set_force_sum_reduction_for_comms(True)


def gathered_state(model: nn.Module, parallel: Parallel) -> dict[str, torch.Tensor]:
    """A sharded model's state dict, whole and tied as it is, on the CPU of the first process (all call it).

    One process gets its model's own tensors.
    """
    if parallel.world_size == 1:
        return model.state_dict()
    whole: dict[int, torch.Tensor] = {}
    state = model.state_dict(keep_vars=True)
    for tensor in state.values():
        if id(tensor) not in whole:
            full = gathered(tensor.detach())
            whole[id(tensor)] = full.cpu() if parallel.leads else full.new_empty(0)
    return {name: whole[id(tensor)] for name, tensor in state.items()}


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor of a shard, on every process (all call it together); any other tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sharded_like(tensor: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """This process's shard of a whole tensor, laid out as `example` is."""
    if not isinstance(example, DTensor):
        return tensor.to(example.device)
    mesh = example.device_mesh
    return distribute_tensor(tensor.to(mesh.device_type), mesh, example.placements, src_data_rank=None)
