"""Sums and means over each of several sequences whose tokens lie end to end."""

import torch
from torch import Tensor


def sequence_sum(values: Tensor, sequence: Tensor | None) -> Tensor:
    """For every token the sum of `values` over its sequence. `values` float[N]; `sequence` i64[N] >= 0, None: one."""
    if sequence is None:
        return values.sum().expand(len(values))
    _, index = sequence.unique(return_inverse=True)
    return values.new_zeros(len(values)).index_add_(0, index, values)[index]


def sequence_mean(values: Tensor, sequence: Tensor | None) -> Tensor:
    """For every token the mean of `values` over its sequence."""
    return sequence_sum(values, sequence) / sequence_sum(torch.ones_like(values), sequence)


def count_sequences(sequence: Tensor | None, chosen: Tensor) -> int:
    """How many sequences have a chosen token (bool[N])."""
    return int(chosen.any()) if sequence is None else len(sequence[chosen].unique())
