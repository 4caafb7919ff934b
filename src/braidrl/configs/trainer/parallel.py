"""Number of trainer processes and sharding of the weights."""

from pydantic import Field

from braidrl.configs.core.base import BaseConfig


class ParallelConfig(BaseConfig):
    """Parallelism of the trainer. Each process trains on its part of every batch."""

    processes: int = Field(1, ge=1)
    """Number of processes per node, one per GPU, that `braid rl` starts. `torchrun` and other launchers set it
    themselves."""
    shard_size: int | None = Field(None, ge=1)
    """Number of processes over which one copy of weights, gradients and optimizer state is sharded. Must divide the
    total number of processes. None: a single copy over all processes, which uses the least memory."""
    reduce_each_micro_batch: bool = False
    """Reduce gradients over processes after every micro batch instead of once per step. Increases communication, but no
    process holds float32 gradients of the whole model. Does not change the gradient."""
