"""What the rl loss is the mean of (SPEC section 6): a choice of token weights, since loss = sum(w l) / sum(w)."""

import torch
from torch import Tensor

from braidrl.configs.trainer.config import LossAggregation
from braidrl.trainer.rl.sequences import sequence_sum


def aggregation_weights(weights: Tensor, trajectory: Tensor, mode: LossAggregation) -> Tensor:
    """Weights float[N] >= 0 of the rl members, so that sum(w l) / sum(w) is the mean that `mode` says.

    `token-mean`: as they are. `seq-mean-token-mean`: those of each trajectory (i64[N], all its samples pooled)
    sum to 1, so that sum(w) counts the trajectories that have any. A sum over micro batches and ranks of both
    numerator and denominator does not depend on how they are cut.
    """
    if mode == "token-mean":
        return weights
    sums = sequence_sum(weights, trajectory)
    return torch.where(sums > 0, weights / sums, 0)
