"""Inputs and outputs of a loss: per-token tensors in, a sum to minimise and metrics out (docs/losses.md).

The built-in losses are vectorised: one call takes all members of an environment in a micro batch. `sequence` is the
sequence of each token; `sequence_sum` and `sequence_mean` reduce over sequences.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Cap on log ratios before exp, to prevent overflow. Below the cap, formulas are exact."""


@dataclass
class LossInputs:
    """Per-token tensors, float[N]. Tokens outside `loss_mask` may hold NaN or infinities. Only
    `trainer_logprobs`, `entropy` and `head_trainer_logprobs` carry gradients."""

    trainer_logprobs: Tensor
    """Current policy (x)."""
    inference_logprobs: Tensor
    """Policy that sampled the rollout (mu)."""
    ref_logprobs: Tensor | None
    """Reference model of the algorithm; None where none scores against one."""
    advantages: Tensor
    loss_mask: Tensor
    """bool[N]: the member tokens of the component."""
    loss_weights: Tensor | None
    """Weight of each token's loss, >= 0. None: 1 everywhere."""
    old_logprobs: Tensor | None = None
    """The trainer's log-probs before the first update of the step (or the sampler's, with `use_rollout_log_probs`)."""
    sequence: Tensor | None = None
    """i64[N] >= 0: the sequence that each token belongs to; None: all to one."""
    entropy: Tensor | None = None
    """Entropy of the current policy at each token, in nats."""
    kl_ref_logprobs: Tensor | None = None
    """The reference that the trainer itself holds (`trainer.reference_kl`)."""
    is_weights: Tensor | None = None
    """Weights old / mu of `trainer.is_correction`; `loss_weights` of a loss function contain them already."""
    head_trainer_logprobs: Tensor | None = None
    """float[N, K]: current log-probs of the sampler's K most likely tokens; 0 at pads."""
    head_inference_logprobs: Tensor | None = None
    """float[N, K]: the sampler's own; -inf at pads."""


@dataclass
class LossOutputs:
    """Result of a loss. `loss` is a sum over the members, attached to the graph even without members. The trainer
    divides it.

    A metric is a scalar (a mean, averaged over calls) or a float[2] of a sum and its denominator, which are added
    over micro batches and ranks before one division. Denominator 0 marks a plain sum.
    """

    loss: Tensor
    metrics: dict[str, Tensor]


Loss = Callable[[LossInputs], LossOutputs]


class LossFunctionError(RuntimeError):
    """A loss function of the user's failed on one sequence."""

    def __init__(self, message: str, sequence: int) -> None:
        super().__init__(message)
        self.sequence = sequence
        """Number of the sequence in `LossInputs.sequence`."""


def capped_ratio(log_ratio: Tensor) -> Tensor:
    """exp(min(log_ratio, 20)), float[N]. The gradient is the capped ratio times the score, also above the
    cap."""
    return torch.exp(log_ratio - (log_ratio.detach() - MAX_LOG_RATIO).clamp_min(0))


def probability_change(x: Tensor, mu: Tensor) -> Tensor:
    """exp(x) - exp(mu) without cancellation, float[N]; both log-probs finite."""
    difference = x - mu
    return torch.exp(torch.maximum(x, mu)) * -torch.expm1(-difference.abs()) * difference.sign()


def mismatch_kl(log_ratio: Tensor) -> Tensor:
    """k3 estimate exp(d) - 1 - d of KL(sampler || trainer), float[N] >= 0, its exponent capped at 20."""
    return torch.expm1(log_ratio.clamp_max(MAX_LOG_RATIO)) - log_ratio


def mean(values: Tensor, count: int | None = None) -> Tensor:
    """Return a metric float[2]: the sum of `values` over `count` tokens (None: the number of values)."""
    total = values.detach().sum(dtype=torch.promote_types(values.dtype, torch.float32))
    return torch.stack([total, total.new_full((), values.numel() if count is None else count)])


def total(values: Tensor) -> Tensor:
    """A metric float[2] that is a plain sum: its denominator is 0."""
    return mean(values, 0)


def weighted(values: Tensor, weights: Tensor | None, chosen: Tensor) -> Tensor:
    """`values` (float[M], of the chosen tokens) times their weights; `chosen` is an index or a mask of the N."""
    return values if weights is None else values * weights[chosen]


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
    """Number of sequences with a chosen token (bool[N])."""
    return int(chosen.any()) if sequence is None else len(sequence[chosen].unique())
