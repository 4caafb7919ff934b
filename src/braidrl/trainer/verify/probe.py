"""A learner that takes no step: the loss and gradient of one batch, however it is cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from braidrl.configs.trainer.config import TrainerConfig
from braidrl.trainer.model.forward import to_device
from braidrl.trainer.model.policy import Policy
from braidrl.trainer.parallel import gathered
from braidrl.trainer.rl.batch import StepBatch
from braidrl.trainer.rl.preparation import prepare
from braidrl.trainer.rl.step import Learner
from braidrl.trainer.shards import trained_parameters
from braidrl.transport.types import TrainingSample


class Gradient(NamedTuple):
    """The loss of a batch and its gradient before clipping."""

    loss: float
    scale: float
    """Sum of the rows' absolute losses: the loss itself may cancel to 0."""
    gradient: list[Tensor]
    """float32, one a trained parameter, whole."""
    largest: float
    """Largest element while it was summed, since its parts may cancel. 0 with several processes."""


@dataclass(eq=False)
class Probe(Learner):
    """A learner that takes no step. It differentiates one batch, cut in many ways."""

    @property
    def row_tokens(self) -> int:
        """Tokens of a row as configured."""
        return self.config.micro_batch_tokens or self.config.seq_len

    def batches(self, samples: Sequence[TrainingSample], drift: float) -> "Batches":
        """The samples with the log-probs of the trainer and its reference.

        `old` is moved by `drift` (standard deviation, in nats), as far as the policy might be from it after some mini
        batches; or clips would have nothing to clip.
        """
        old = None
        if self.config.compares_with_old and not self.config.use_rollout_log_probs:
            noise = np.random.default_rng(self.config.seed)
            exact = self._logprobs(self.policy, samples)
            old = [row + drift * noise.standard_normal(len(row)) * (row != 0) for row in exact]
        kl_ref = None if self.reference is None else self._logprobs(self.reference, samples)
        return Batches(self.config, samples, old, kl_ref)

    def differentiate(self, batch: StepBatch, max_tokens: int, world_size: int = 1) -> Gradient:
        """A single process is every one of the `world_size` ranks in turn; of several, each is its own."""
        alone = self.parallel.world_size == 1
        self.optimizer.zero_grad(set_to_none=True)
        losses, largest = [], [0.0]
        for rank in range(world_size) if alone else [self.parallel.rank]:
            for row in batch.pack(max_tokens, rank, world_size):
                metrics = self._backward(to_device(row, self.parallel.device), batch.normalisers)
                losses.append(metrics["loss"][0].double())
                if alone:
                    largest += [largest_element(part) for part in self._gradient_parts()]
        rows = torch.stack(losses)
        loss, scale = self.parallel.all_reduce(torch.stack([rows.sum(), rows.abs().sum()])).tolist()
        # numpy's maximum is NaN where anything is
        return Gradient(loss, scale, self._gradient_parts(), float(np.max(largest)))

    def _gradient_parts(self) -> list[Tensor]:
        return [
            gathered(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
            for parameter in trained_parameters(self.policy).values()
        ]

    def logprobs(self, policy: Policy, samples: Sequence[TrainingSample]) -> list[np.ndarray]:
        """Packed log-probs of all tokens but the first, float[T] a sample (0 at the first)."""
        return self._logprobs(policy, [_all_tokens(sample) for sample in samples])


@dataclass(frozen=True)
class Batches:
    """The samples of one step in any order, each time prepared as a step prepares them."""

    config: TrainerConfig
    samples: Sequence[TrainingSample]
    old: list[np.ndarray] | None
    kl_ref: list[np.ndarray] | None

    def ordered(self, order: Sequence[int] | None = None) -> StepBatch:
        """The batch with its samples in this order (None: as they come)."""
        if order is None:
            return prepare(self.samples, self.config, self.old, self.kl_ref)[0]
        old, kl_ref = (rows and [rows[index] for index in order] for rows in (self.old, self.kl_ref))
        return prepare([self.samples[index] for index in order], self.config, old, kl_ref)[0]


def _all_tokens(sample: TrainingSample) -> TrainingSample:
    """Return the same tokens, of which all but the first are members of `ce`."""
    length = len(sample.token_ids)
    return TrainingSample(
        token_ids=sample.token_ids,
        mask=np.zeros(length, bool),
        sampling_logprobs=np.zeros(length, np.float32),
        temperature=sample.temperature,
        ce_weights=(np.arange(length) > 0).astype(np.float32),
    )


def largest_element(values: Tensor) -> float:
    """Largest absolute value, NaN where there is one; 0 of nothing."""
    return float(values.detach().abs().max()) if values.numel() else 0.0
