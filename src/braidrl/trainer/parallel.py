"""Data parallelism: one process by default; of several, each holds a shard of the parameters."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Parallel:
    """This process among the `world_size` that train together."""

    rank: int
    world_size: int
    device: torch.device
    shard_size: int | None = None
    """Processes that hold one copy of the parameters, consecutive ranks; None: all of them."""

    @property
    def leads(self) -> bool:
        """True on the process that writes files shared by all ranks."""
        return self.rank == 0

    @property
    def writers(self) -> int:
        """Processes that hold the first copy of the parameters, and write it: the first ranks."""
        return self.shard_size or self.world_size

    @property
    def loads_on(self) -> torch.device:
        """Device that a model is loaded on. With several processes it is the CPU, from which each takes its shards."""
        return self.device if self.world_size == 1 else torch.device("cpu")

    @cached_property
    def mesh(self) -> DeviceMesh:
        """All processes: `shard`, or `replicate` x `shard` where there are several copies of the parameters."""
        if self.writers == self.world_size:
            return init_device_mesh(self.device.type, (self.world_size,), mesh_dim_names=("shard",))
        shape = (self.world_size // self.writers, self.writers)
        return init_device_mesh(self.device.type, shape, mesh_dim_names=("replicate", "shard"))

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
def data_parallel(timeout: float = 600.0, shard_size: int | None = None) -> Iterator[Parallel]:
    """Join the processes that a launcher started (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`), or be the only one.

    A collective that takes longer than `timeout` seconds, because another process died, is an error. Raises
    `ValueError` when `shard_size` does not divide the number of processes.
    """
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if shard_size is not None and world_size % shard_size:
        raise ValueError(
            f"trainer.parallel.shard_size = {shard_size} does not divide the {world_size} processes that were "
            "started; make it a divisor (the GPUs of one node, for example), or remove the key"
        )
    if world_size == 1:
        yield Parallel(0, 1, device)
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    try:
        yield Parallel(dist.get_rank(), world_size, device, shard_size)
    finally:
        dist.destroy_process_group()


def shard(
    policy: nn.Module, layers: Iterable[nn.Module], parallel: Parallel, compute_dtype: torch.dtype
) -> None:
    """Shard the parameters of `policy` in place. Each of `layers` is gathered separately while it computes.

    Parameters and gradients stay float32 and are reduced in float32. Layers are gathered and computed in
    `compute_dtype`. Gradients are summed over all processes, not averaged, since the loss is divided by global
    counts. With one process this does nothing.
    """
    if parallel.world_size == 1:
        return
    # the residual stream between layers, the embeddings and the head stay float32, as in one process
    precision = MixedPrecisionPolicy(
        param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for layer in layers:
        fully_shard(layer, mesh=parallel.mesh, mp_policy=precision)
    fully_shard(policy, mesh=parallel.mesh)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # gloo and NCCL both sum; a factor of their own is NCCL's alone
            module.set_force_sum_reduction_for_comms(True)
    policy.register_forward_hook(_shard_again)


def _shard_again(policy: nn.Module, *_: object) -> None:
    """Reshard after a forward without a backward, which leaves the outermost parameters gathered."""
    if isinstance(policy, FSDPModule) and not torch.is_grad_enabled():
        policy.reshard()


def sum_gradients(policy: nn.Module, last: bool, each: bool) -> None:
    """Say before a backward whether its gradients are summed over the processes, or added to until the `last` one.

    With `each`, shards are summed at once, so that no process keeps whole gradients; copies of them still wait.
    """
    if isinstance(policy, FSDPModule):
        policy.set_requires_gradient_sync(last or each)
        policy.set_requires_all_reduce(last)


def gathered_state(model: nn.Module, parallel: Parallel, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A sharded model's state dict in `dtype`, whole and tied as it is, on the CPU of the first process (all call it).

    Tensors are gathered one by one, in `dtype`, so that the other processes never hold more than one; they get empty
    ones. One process gets its model's own tensors, as they are.
    """
    if parallel.world_size == 1:
        return model.state_dict()
    whole: dict[int, torch.Tensor] = {}
    state = model.state_dict(keep_vars=True)
    for tensor in state.values():
        if id(tensor) not in whole:
            small = tensor.detach().to(dtype) if tensor.is_floating_point() else tensor
            full = gathered(small)
            whole[id(tensor)] = full.cpu() if parallel.leads else full.new_empty(0)
    return {name: whole[id(tensor)] for name, tensor in state.items()}


@dataclass(frozen=True)
class Rows:
    """This process's part of a tensor: rows (of the first dimension) `start` to `start + len(local)` of `total`."""

    local: torch.Tensor
    """A view of the tensor's own memory; maybe empty."""
    start: int
    total: int | None
    """None: `local` is the whole tensor."""


def rows_of(tensor: torch.Tensor) -> Rows:
    """Return the rows of a tensor that this process holds."""
    if not isinstance(tensor, DTensor):
        return Rows(tensor, 0, None)
    (dimension,) = (index for index, placement in enumerate(tensor.placements) if placement.is_shard(0))
    mesh, total = tensor.device_mesh, len(tensor)
    each = -(-total // mesh.size(dimension))  # as torch.chunk cuts: the last ones may have fewer, or none
    return Rows(tensor.to_local(), min(mesh.get_local_rank(dimension) * each, total), total)


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor of a shard, on every process (all call it together); any other tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
