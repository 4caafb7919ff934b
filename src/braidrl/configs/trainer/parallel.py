"""How many processes train together, and how they share the weights."""

from pydantic import Field

from braidrl.configs.core.base import BaseConfig


class ParallelConfig(BaseConfig):
    """The processes of one trainer; each takes its share of every batch."""

    processes: int = Field(1, ge=1)
    """Processes, one a GPU, that `braid rl` starts on a node. A launcher of your own (`torchrun`) has its number."""
    shard_size: int | None = Field(None, ge=1)
    """Processes that hold one copy of weights, gradients and optimizer state between them; it divides the number of
    all, and there are as many copies as it goes into that. None: all hold one copy, which takes least memory."""
    reduce_each_micro_batch: bool = False
    """Sum gradients over processes after every micro batch rather than once a step: more traffic, and no process
    holds the whole model's float32 gradients in between. Nothing else depends on it."""
