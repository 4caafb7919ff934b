"""All samples of one optimizer step, with what the trainer adds to them; the same on every process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np

from braidrl.packing import MicroBatch, Normalisers, pack
from braidrl.transport.types import TrainingSample

LOSS_WEIGHTS = "loss_weights"
"""Extra stream: rl weights after masks and aggregation; 0 takes a member out of loss and denominator."""


@dataclass(frozen=True)
class StepBatch:
    """Samples, and extra streams of each: name -> one float[T] a sample (`LossInputs` says what they are)."""

    samples: Sequence[TrainingSample]
    extra: Mapping[str, Sequence[np.ndarray]] = field(default_factory=dict)

    @cached_property
    def normalisers(self) -> Normalisers:
        """Denominators of the components."""
        return Normalisers.of(self.samples, self.extra.get(LOSS_WEIGHTS))

    def pack(self, max_tokens: int, rank: int, world_size: int) -> list[MicroBatch]:
        """The rows of one process."""
        return pack(self.samples, self.extra, max_tokens=max_tokens, rank=rank, world_size=world_size)

    def take(self, indexes: Sequence[int]) -> Self:
        """A part of it."""
        extra = {name: [streams[index] for index in indexes] for name, streams in self.extra.items()}
        return type(self)([self.samples[index] for index in indexes], extra)

    def mini_batches(self, count: int) -> list[Self]:
        """At most `count` parts of about as many tokens, in order; samples of a group stay together."""
        if count == 1:
            return [self]
        groups: dict[object, list[int]] = {}
        for index, sample in enumerate(self.samples):
            groups.setdefault(sample.group_id or index, []).append(index)
        sizes = [sum(len(self.samples[index].token_ids) for index in group) for group in groups.values()]
        middles = np.cumsum(sizes) - np.array(sizes) / 2
        parts: list[list[int]] = [[] for _ in range(count)]
        for group, middle in zip(groups.values(), middles, strict=True):
            parts[int(count * middle / sum(sizes))] += group
        return [self.take(part) for part in parts if part]
