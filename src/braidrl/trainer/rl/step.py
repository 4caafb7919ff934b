"""One optimizer step: samples in, metrics out. It knows three loss components and no algorithm."""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from braidrl.configs.trainer.config import TrainerConfig
from braidrl.packing import MicroBatch, Normalisers
from braidrl.trainer.model.forward import DeviceMicroBatch, to_device
from braidrl.trainer.model.policy import Policy, load_policy, load_reference
from braidrl.trainer.optim import (
    clip_gradients,
    learning_rate,
    make_optimizer,
    move_state,
    set_learning_rate,
)
from braidrl.trainer.parallel import Parallel, sum_gradients
from braidrl.trainer.rl.batch import StepBatch
from braidrl.trainer.rl.components import component_loss
from braidrl.trainer.rl.loss import LossFunctionError, total
from braidrl.trainer.rl.metrics import MetricSums, batch_metrics, peak_memory_gib
from braidrl.trainer.rl.objective import RLObjective
from braidrl.trainer.rl.preparation import prepare
from braidrl.trainer.rl.token_records import TokenRecorder
from braidrl.trainer.state.publish import Publisher
from braidrl.transport.types import TrainingSample
from braidrl.utils.run_folder import RunFolder

if TYPE_CHECKING:
    from braidrl.trainer.model.lora import ReferenceAdapter

logger = logging.getLogger(__name__)

NONFINITE = "nonfinite_logprobs"
"""Metric of a step under way: loss entries whose trainer log-prob is NaN or infinite. It must be 0."""


class NonFiniteError(RuntimeError):
    """A log-prob, loss or gradient of the trainer is NaN or infinite; no optimizer step was taken."""


@dataclass(eq=False)
class Learner:
    """The policy, its optimizer, and everything else that a step needs except the samples."""

    config: TrainerConfig
    policy: Policy
    optimizer: torch.optim.AdamW
    rl_loss: RLObjective
    parallel: Parallel
    reference: "Policy | ReferenceAdapter | None" = None
    """The frozen model of `reference_kl`."""

    @classmethod
    def load(cls, config: TrainerConfig, parallel: Parallel) -> Self:
        """The base model (`config.model`) with a fresh optimizer, sharded over the processes."""
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        disable_progress_bar()  # one a published version would fill the log
        # with share_device, inference owns the device until the first training step
        place = replace(parallel, device=torch.device("cpu")) if config.share_device else parallel
        policy = load_policy(config, place)
        optimizer = make_optimizer(policy, config.optim)
        reference = load_reference(config, place, policy)
        return cls(config, policy, optimizer, RLObjective.of(config), parallel, reference)

    def __post_init__(self) -> None:
        self._publisher = Publisher(self.config, self.policy, self.parallel)

    @property
    def model(self) -> PreTrainedModel:
        """The model that is trained."""
        return self.policy.model

    @property
    def moving_reference(self) -> nn.Module | None:
        """The model of `reference_kl` where it is refreshed, so that it belongs to the run's state."""
        config = self.config.reference_kl
        if self.reference is None or config is None or not config.update_interval:
            return None
        return self.reference.model

    def step(
        self, step: int, samples: Sequence[TrainingSample], recorder: TokenRecorder | None = None
    ) -> dict[str, float]:
        """Take step `step` (1-based) on the whole batch, which every process holds; returns its metrics.

        It is one optimizer step, or one for each of `mini_batches` parts. A part without a component member
        takes none (`stepped` counts those that did): nothing changes.

        Raises `NonFiniteError`, naming the sample, before the optimizer step that it would spoil.
        """
        start = time.perf_counter()
        lr = learning_rate(self.config.optim, self.config.scheduler, step, self.config.max_steps)
        set_learning_rate(self.optimizer, lr)
        batch, masks = self._prepare(samples)
        sums, norms = MetricSums(masks), []
        for part in batch.mini_batches(self.config.mini_batches):
            if any((part.normalisers.rl, part.normalisers.ce, part.normalisers.ref_kl)):
                gradient, norm = self._update(step, part, recorder)
                sums.add(gradient.sums)
                norms.append(norm)
        self._refresh_reference(step)
        metrics = batch_metrics(samples)
        if norms:
            metrics |= _means(sums.values(), len(norms)) | {"grad_norm": float(np.mean(norms)), "lr": lr}
        else:
            logger.warning(
                "step %d: no token to learn from in %d samples; weights stay as they are", step, len(samples)
            )
        seconds = time.perf_counter() - start
        return metrics | {
            "stepped": float(len(norms)),
            "time/step": seconds,
            "tokens_per_second": metrics["tokens"] / seconds,
            "memory/peak_gib": peak_memory_gib(self.parallel.device),
        }

    def publish(self, run: RunFolder, version: int, whole: bool = True) -> None:
        """Publish the weights as policy version `version`. Every process calls it; the first writes.

        Unless it must be `whole`, it may be what changed alone (`weights.delta`)."""
        self._publisher.publish(run, version, whole)

    def to_host(self) -> None:
        """Move parameters and optimizer state to CPU memory and drop gradients. The device is free until `to_device`.
        Does nothing on a CPU."""
        self._move(torch.device("cpu"))

    def to_device(self) -> None:
        """Take back what `to_host` moved."""
        self._move(self.parallel.device)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Hold the device inside the context, if inference uses it between steps (`share_device`)."""
        if self.config.share_device:
            self.to_device()
        yield
        if self.config.share_device:
            self.to_host()

    def _move(self, device: torch.device) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.policy.to(device)
        if isinstance(self.reference, Policy):
            self.reference.to(device)
        move_state(self.optimizer, device)
        if self.parallel.device.type == "cuda":
            torch.cuda.empty_cache()

    def _update(self, step: int, part: StepBatch, recorder: TokenRecorder | None) -> tuple[MetricSums, float]:
        """Take one optimizer step; returns what `_gradient` does."""
        if recorder is not None:
            recorder.begin(part)
        gradient, norm = self._gradient(part, part.normalisers, recorder)
        if not _is_finite(gradient.values(), norm):
            raise NonFiniteError(self._explain(step, part))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return gradient, norm

    def _prepare(self, samples: Sequence[TrainingSample]) -> tuple[StepBatch, dict[str, torch.Tensor]]:
        """The batch with the log-probs, masks and weights that are fixed for the whole step."""
        old = self._logprobs(self.policy, samples) if self.config.needs_old_logprobs else None
        kl_ref = None if self.reference is None else self._logprobs(self.reference, samples)
        return prepare(samples, self.config, old, kl_ref)

    @torch.no_grad()
    def _logprobs(
        self, policy: "Policy | ReferenceAdapter", samples: Sequence[TrainingSample]
    ) -> list[np.ndarray]:
        """Log-probs of every loss entry under a policy, float[T] a sample, 0 elsewhere; whole on every process."""
        lengths = [len(sample.token_ids) for sample in samples]
        starts = torch.tensor([0, *np.cumsum(lengths)], device=self.parallel.device)
        found = torch.zeros(int(starts[-1]), dtype=torch.float64, device=self.parallel.device)
        for row in self._rows(StepBatch(samples)):
            micro = to_device(row, self.parallel.device)
            positions = micro.position_ids[micro.hidden_index] + 1
            found[starts[micro.sample_index] + positions] = policy(micro).logprobs.double()
        whole = self.parallel.all_reduce(found).cpu().numpy()
        return np.split(whole, np.cumsum(lengths)[:-1])[: len(lengths)]

    def _gradient(
        self, batch: StepBatch, normalisers: Normalisers, recorder: TokenRecorder | None = None
    ) -> tuple[MetricSums, float]:
        """Accumulate and clip the batch's gradient; returns global metrics, and the norm before clipping."""
        self.optimizer.zero_grad(set_to_none=True)
        sums = MetricSums()
        rows = self._rows(batch)
        for turn, row in enumerate(rows, start=1):
            sum_gradients(self.policy, turn == len(rows), self.config.parallel.reduce_each_micro_batch)
            try:
                sums.add(self._backward(to_device(row, self.parallel.device), normalisers, recorder))
            except LossFunctionError as error:
                raise LossFunctionError(
                    f"{error}, on {_place(batch.samples[error.sequence])}", error.sequence
                ) from error.__cause__
        norm = clip_gradients(self.policy.parameters(), self.config.optim.max_norm)
        return sums.reduce(self.parallel), norm

    def _rows(self, batch: StepBatch) -> list[MicroBatch]:
        max_tokens = self.config.micro_batch_tokens or self.config.seq_len
        return batch.pack(max_tokens, self.parallel.rank, self.parallel.world_size)

    def _backward(
        self, micro: DeviceMicroBatch, normalisers: Normalisers, recorder: TokenRecorder | None = None
    ) -> dict[str, torch.Tensor]:
        outputs = self.policy(micro)
        loss, metrics = component_loss(outputs, micro, self.rl_loss, normalisers)
        loss.backward()
        if recorder is not None:
            recorder.take(micro, outputs, self.rl_loss, normalisers)
        return metrics | {
            "tokens/packed": total(torch.ones_like(micro.token_ids)),
            # the losses leave non-finite log-probs out; the step must not
            NONFINITE: total(~torch.isfinite(outputs.logprobs.detach())),
        }

    def _refresh_reference(self, step: int) -> None:
        """The reference becomes the policy after every n-th step, whether that one trained or not."""
        config = self.config.reference_kl
        if config is None or self.reference is None or not config.update_interval:
            return
        if step % config.update_interval == 0:
            self.reference.copy_(self.policy)

    def _explain(self, step: int, batch: StepBatch) -> str:
        """Find the sample that makes the step non-finite, by taking each one alone."""
        culprit = "no single sample does so alone, only their sum overflows"
        for index, sample in enumerate(batch.samples):
            gradient, norm = self._gradient(batch.take([index]), batch.normalisers)
            metrics = gradient.values()
            if not _is_finite(metrics, norm):
                seen = {NONFINITE: metrics[NONFINITE], "loss": metrics["loss"], "grad_norm": norm}
                culprit = f"{_place(sample)} does so alone: {seen}"
                break
        self.optimizer.zero_grad(set_to_none=True)
        return (
            f"step {step}: the trainer's log-probs, loss or gradient are not finite; the step was not taken and "
            f"nothing published: {culprit}. Lower optim.lr or optim.max_norm, or use model.dtype = "
            f"'float32'; then continue from the last checkpoint with --resume"
        )


def _place(sample: TrainingSample) -> str:
    return (
        f"env {sample.env!r}, group {sample.group_id!r}, episode {sample.episode_id!r}, trace {sample.trace_id!r}, "
        f"branch {sample.branch}"
    )


def _is_finite(metrics: dict[str, float], norm: float) -> bool:
    return metrics[NONFINITE] == 0 and math.isfinite(metrics["loss"]) and math.isfinite(norm)


def _means(metrics: dict[str, float], mini_batches: int) -> dict[str, float]:
    """Losses are sums, of each mini batch's: report their mean."""
    del metrics[NONFINITE]
    return {
        name: value / mini_batches if name.split("/")[0] == "loss" else value
        for name, value in metrics.items()
    }
