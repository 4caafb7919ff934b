"""Masks and weights that need the whole batch, computed before it is split into mini batches and rows.

The order is M2PO, IS correction (both on the unfiltered members), aggregation. The rl loss is sum(w l) / sum(w), so an
aggregation mode is a choice of token weights w (docs/losses.md).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from braidrl.configs.trainer.config import LossAggregation, TrainerConfig
from braidrl.packing import rl_streams
from braidrl.trainer.rl.batch import LOSS_WEIGHTS, StepBatch
from braidrl.trainer.rl.loss import mean, sequence_sum
from braidrl.trainer.rl.offpolicy import is_correction, m2po
from braidrl.transport.types import TrainingSample

Streams = Sequence[np.ndarray]


def prepare(
    samples: Sequence[TrainingSample],
    config: TrainerConfig,
    old: Streams | None = None,
    kl_ref: Streams | None = None,
) -> tuple[StepBatch, dict[str, Tensor]]:
    """The batch and the metrics of its masks (float[2] of sum and denominator), of all of it and of each environment.

    `old` and `kl_ref` hold one float[T] a sample: the trainer's log-probs before the step (None: they were not
    computed), and those of its own reference.
    """
    extra: dict[str, Streams] = {}
    if config.use_rollout_log_probs:
        old = [sample.sampling_logprobs for sample in samples]
    if old is not None:
        extra["old_logprobs"] = old
    if kl_ref is not None:
        extra["kl_ref_logprobs"] = kl_ref
    weighed = config.is_correction is not None or config.m2po is not None
    if not weighed and config.loss_agg_mode == "token-mean":
        return StepBatch(samples, extra), {}
    members = _Members(samples)
    weights = members.weights
    metrics: dict[str, Tensor] = {}
    if config.m2po is not None:
        keep, metrics = m2po(members.of(old), members.mu, config.m2po)
        weights = torch.where(keep, weights, 0)
    if config.is_correction is not None:
        factors, keep, more = is_correction(
            members.of(old), members.mu, members.sequence, config.is_correction
        )
        weights, metrics = torch.where(keep, weights, 0), metrics | more
        extra["is_weights"] = members.spread(factors)
    weights = aggregation_weights(weights, members.trajectory, config.loss_agg_mode)
    extra[LOSS_WEIGHTS] = members.spread(weights)
    return StepBatch(samples, extra), members.means(metrics)


class _Members:
    """The rl members of a batch end to end, float64."""

    def __init__(self, samples: Sequence[TrainingSample]) -> None:
        streams = rl_streams(samples)
        self.where = [np.flatnonzero(stream) for stream in streams]
        self.lengths = [len(stream) for stream in streams]
        self.weights = self.of(streams)
        self.mu = self.of([sample.sampling_logprobs for sample in samples])
        self.sequence = self._repeat(range(len(samples)))
        self.envs = sorted({sample.env for sample in samples})
        self.env = self._repeat([self.envs.index(sample.env) for sample in samples])
        keys = [
            (sample.episode_id, sample.trace_id) if sample.trace_id else index
            for index, sample in enumerate(samples)
        ]
        first = {key: index for index, key in reversed(list(enumerate(keys)))}
        self.trajectory = self._repeat([first[key] for key in keys])

    def of(self, streams: Streams | None) -> Tensor:
        """The members' values of one float[T] a sample."""
        if streams is None:
            raise ValueError("M2PO and IS correction need the trainer's log-probs before the step; got None")
        parts = [stream[where] for stream, where in zip(streams, self.where, strict=True)]
        return torch.from_numpy(np.concatenate([np.zeros(0), *parts]).astype(np.float64))

    def spread(self, values: Tensor) -> list[np.ndarray]:
        """Back to one float64[T] a sample, 0 off the members."""
        streams = [np.zeros(length) for length in self.lengths]
        ends = np.cumsum([len(where) for where in self.where])
        parts = np.split(values.numpy(), ends[:-1])[: len(ends)]  # nothing is split into one part
        for stream, where, part in zip(streams, self.where, parts, strict=True):
            stream[where] = part
        return streams

    def means(self, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        """Metrics of the members (float[N], NaN where one does not count), of all and as `NAME/env/ENV`."""
        found = {}
        for name, values in metrics.items():
            counts = ~torch.isnan(values)
            found[name] = mean(values[counts])
            for number, env in enumerate(self.envs):
                if (own := self.env == number).any():
                    found[f"{name}/env/{env}"] = mean(values[counts & own])
        return found

    def _repeat(self, numbers: Sequence[int]) -> Tensor:
        counts = torch.tensor([len(where) for where in self.where], dtype=torch.long)
        return torch.tensor(list(numbers), dtype=torch.long).repeat_interleave(counts)


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
