"""One optimizer step: samples in, metrics out. It knows three loss components and no algorithm."""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from braidrl.configs.trainer import TrainerConfig
from braidrl.packing import MicroBatch, Normalisers, pack
from braidrl.trainer.forward import DeviceMicroBatch, TokenOutputs, to_device, token_logprobs
from braidrl.trainer.metrics import MetricSums, batch_metrics, peak_memory_gib
from braidrl.trainer.model import load_model, save_model
from braidrl.trainer.optim import clip_gradients, learning_rate, make_optimizer, set_learning_rate
from braidrl.trainer.parallel import Parallel, gathered_state, shard
from braidrl.trainer.rl.components import component_loss
from braidrl.trainer.rl.loss import Loss, total
from braidrl.trainer.rl.losses import make_loss
from braidrl.transport.types import TrainingSample
from braidrl.transport.weights import publish_weights
from braidrl.utils.run_folder import RunFolder

logger = logging.getLogger(__name__)

NONFINITE = "nonfinite_logprobs"
"""Metric of a step under way: loss entries whose trainer log-prob is NaN or infinite. It must be 0."""


class NonFiniteError(RuntimeError):
    """A log-prob, loss or gradient of the trainer is NaN or infinite; no optimizer step was taken."""


class Policy(nn.Module):
    """The model and its exact forward as one module, so that shards are whole where they are used."""

    def __init__(self, model: PreTrainedModel, compute_dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.compute_dtype = compute_dtype

    def forward(self, micro: DeviceMicroBatch) -> TokenOutputs:
        outputs = token_logprobs(self.model, micro, self.compute_dtype)
        # sharding hooks into what a module returns, which must not be a view
        return TokenOutputs(outputs.logprobs.clone(), outputs.entropy.clone())


@dataclass(eq=False)
class Learner:
    """The policy, its optimizer and what a step needs besides the samples."""

    config: TrainerConfig
    policy: Policy
    optimizer: torch.optim.AdamW
    rl_loss: Loss
    parallel: Parallel

    @classmethod
    def load(cls, config: TrainerConfig, parallel: Parallel) -> Self:
        """The base model (`config.model`) with a fresh optimizer, sharded over the processes."""
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        disable_progress_bar()  # one a published version would fill the log
        model = load_model(config.model, parallel.device, longest_path=config.seq_len)
        if config.activation_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        policy = Policy(model, getattr(torch, config.model.dtype))
        layers = [
            module for module in model.modules() if type(module).__name__ in (model._no_split_modules or ())
        ]
        shard(policy, layers, parallel, policy.compute_dtype)
        return cls(config, policy, make_optimizer(policy, config.optim), make_loss(config.loss), parallel)

    @property
    def model(self) -> PreTrainedModel:
        return self.policy.model

    def step(self, step: int, samples: Sequence[TrainingSample]) -> dict[str, float]:
        """Take step `step` (1-based) on the whole batch, which every process holds; returns its metrics.

        A batch without a component member takes no optimizer step (`stepped` is 0): nothing changes.

        Raises `NonFiniteError`, naming the sample, before anything is changed.
        """
        start = time.perf_counter()
        normalisers = Normalisers.of(samples)
        metrics = batch_metrics(samples)
        stepped = any((normalisers.rl, normalisers.ce, normalisers.ref_kl))
        if stepped:
            metrics |= self._gradient(samples, normalisers)
            if not _is_finite(metrics):
                raise NonFiniteError(self._explain(step, samples, normalisers))
            del metrics[NONFINITE]
            metrics["lr"] = learning_rate(
                self.config.optim, self.config.scheduler, step, self.config.max_steps
            )
            set_learning_rate(self.optimizer, metrics["lr"])
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        else:
            logger.warning(
                "step %d: no token to learn from in %d samples; weights stay as they are", step, len(samples)
            )
        seconds = time.perf_counter() - start
        return metrics | {
            "stepped": float(stepped),
            "time/step": seconds,
            "tokens_per_second": metrics["tokens"] / seconds,
            "memory/peak_gib": peak_memory_gib(self.parallel.device),
        }

    def publish(self, run: RunFolder, version: int) -> None:
        """Publish the weights as policy version `version`. Every process calls it; the first writes."""
        state = gathered_state(self.model, self.parallel)
        if self.parallel.leads:
            source, dtype = self.config.model.path, self.policy.compute_dtype
            publish_weights(run, version, lambda folder: save_model(self.model, source, folder, dtype, state))
        self.parallel.barrier()

    def _gradient(self, samples: Sequence[TrainingSample], normalisers: Normalisers) -> dict[str, float]:
        """Accumulate and clip the batch's gradient; returns global metrics, `grad_norm` before clipping."""
        self.optimizer.zero_grad(set_to_none=True)
        sums = MetricSums()
        for micro in self._pack(samples):
            sums.add(self._backward(to_device(micro, self.parallel.device), normalisers))
        metrics = sums.reduce(self.parallel)
        return metrics | {"grad_norm": clip_gradients(self.policy.parameters(), self.config.optim.max_norm)}

    def _pack(self, samples: Sequence[TrainingSample]) -> list[MicroBatch]:
        max_tokens = self.config.micro_batch_tokens or self.config.seq_len
        return pack(
            samples, max_tokens=max_tokens, rank=self.parallel.rank, world_size=self.parallel.world_size
        )

    def _backward(self, micro: DeviceMicroBatch, normalisers: Normalisers) -> dict[str, torch.Tensor]:
        outputs = self.policy(micro)
        loss, metrics = component_loss(outputs.logprobs, micro, self.rl_loss, normalisers, outputs.entropy)
        loss.backward()
        return metrics | {
            "tokens/packed": total(torch.ones_like(micro.token_ids)),
            # the losses leave non-finite log-probs out; the step must not
            NONFINITE: total(~torch.isfinite(outputs.logprobs.detach())),
        }

    def _explain(self, step: int, samples: Sequence[TrainingSample], normalisers: Normalisers) -> str:
        """Find the sample that makes the step non-finite, by taking each one alone."""
        culprit = "no single sample does so alone, only their sum overflows"
        for sample in samples:
            metrics = self._gradient([sample], normalisers)
            if not _is_finite(metrics):
                seen = {name: metrics[name] for name in (NONFINITE, "loss", "grad_norm")}
                culprit = (
                    f"env {sample.env!r}, group {sample.group_id!r}, episode {sample.episode_id!r}, "
                    f"trace {sample.trace_id!r}, branch {sample.branch} does so alone: {seen}"
                )
                break
        self.optimizer.zero_grad(set_to_none=True)
        return (
            f"step {step}: the trainer's log-probs, loss or gradient are not finite; no step was taken and "
            f"nothing published: {culprit}. Lower optim.lr or optim.max_norm, or use model.dtype = "
            f"'float32'; then continue from the last checkpoint with --resume"
        )


def _is_finite(metrics: dict[str, float]) -> bool:
    return metrics[NONFINITE] == 0 and math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])
