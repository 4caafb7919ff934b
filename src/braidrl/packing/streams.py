"""Component membership of the tokens of a sample, validated, and the member counts of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from braidrl.transport.types import TrainingSample


class Streams(NamedTuple):
    """The validated component weights of one sample, float[T] each; 0 is no member."""

    rl: np.ndarray
    ce: np.ndarray
    ref_kl: np.ndarray


COMPONENTS = Streams._fields
"""The terms of the training loss."""


def streams_of(index: int, sample: TrainingSample) -> Streams:
    """Return the component weights of `sample`, number `index` of its batch. Raises like `pack`."""
    problem = _problem(sample)
    if problem is None:
        nothing = np.zeros(len(sample.token_ids), np.float32)
        rl = sample.mask.astype(np.float32)
        if sample.rl_weights is not None:
            rl = np.where(sample.mask, sample.rl_weights, nothing)
        ce, ref_kl = (nothing if w is None else w for w in (sample.ce_weights, sample.ref_kl_weights))
        streams = Streams(rl, ce, ref_kl)
        problem = _member_problem(sample, streams)
    if problem is not None:
        place = f"env {sample.env!r}, trace {sample.trace_id!r}, branch {sample.branch}"
        raise ValueError(f"sample {index} ({place}): {problem}")
    return streams


def rl_streams(samples: Sequence[TrainingSample]) -> list[np.ndarray]:
    """The rl weights of every sample, float[T]; 0 is no member. Raises what `pack` raises."""
    return [streams_of(index, sample).rl for index, sample in enumerate(samples)]


@dataclass(frozen=True)
class Normalisers:
    """Global denominators of the three components. A zero one divides by 1."""

    rl: float = 0.0
    """Sum of the rl members' weights."""
    ce: float = 0.0
    """Number of ce members."""
    ref_kl: float = 0.0
    """Number of ref_kl members."""

    @classmethod
    def of(cls, samples: Sequence[TrainingSample], rl_weights: Sequence[np.ndarray] | None = None) -> Self:
        """Return the denominators of a whole batch, equal on every rank that holds the batch. Raises like `pack`.

        `rl_weights` (float[T] per sample, 0 off the rl members) override the weights of the samples.
        """
        streams = [streams_of(index, sample) for index, sample in enumerate(samples)]
        rl = [stream.rl for stream in streams] if rl_weights is None else rl_weights
        return cls(
            rl=float(sum(weights.sum(dtype=np.float64) for weights in rl)),
            ce=float(sum(np.count_nonzero(stream.ce) for stream in streams)),
            ref_kl=float(sum(np.count_nonzero(stream.ref_kl) for stream in streams)),
        )


def _problem(sample: TrainingSample) -> str | None:
    shape = sample.token_ids.shape
    weights = ("rl_weights", "ce_weights", "ref_kl_weights")
    for name in ("mask", "sampling_logprobs", "advantages", "ref_logprobs", *weights):
        stream = getattr(sample, name)
        if stream is None:
            continue
        if stream.shape != shape:
            return f"{name} has shape {stream.shape}, token_ids {shape}; a stream has one entry a token"
        bad = np.flatnonzero(~((stream >= 0) & (stream < np.inf)))
        if name in weights and bad.size:
            return f"{name}[{bad[0]}] is {stream[bad[0]]}; a weight is finite and at least 0"
    for name in ("head_ids", "head_logprobs"):
        head, rows = getattr(sample, name), np.count_nonzero(sample.mask)
        if head is not None and (head.ndim != 2 or len(head) != rows):
            return f"{name} has shape {head.shape}; it has one row for each of the {rows} tokens of mask"
    if not 0 < sample.temperature < np.inf:
        return f"temperature is {sample.temperature}; train on samples drawn at a finite temperature above 0"
    return None


def _member_problem(sample: TrainingSample, streams: Streams) -> str | None:
    if len(sample.token_ids) and any(weights[0] for weights in streams):
        return "its first token is a loss member, but no token predicts it; a sample starts with its prompt"
    for name, weights, needed in (
        ("rl", streams.rl, "advantages"),
        ("ref_kl", streams.ref_kl, "ref_logprobs"),
    ):
        stream = getattr(sample, needed)
        missing = np.flatnonzero((weights != 0) & (True if stream is None else ~np.isfinite(stream)))
        if missing.size:
            return f"token {missing[0]} is a member of {name}, but has no finite value in {needed}; ship it"
    return None
