"""Checks of exactness on the model and config of a run: gradients do not depend on how a batch is split, and log-probs
agree between trainer, sampler and a plain forward.

Tolerances are relative for gradients and in nats for log-probs. In float32 all differences are roundings of 6e-8 that
add up as a random walk over layers and tokens: 8e-7 was measured on three layers, 5e-6 on thirty (log-probs 1e-6 and
5e-5), and a factor of 20 is left for larger models. A loss that lost two of 236 tokens showed as 5e-2. In bfloat16 a
rounding is 4e-3, engine and trainer round at different places, and a token at the edge of a clip may fall on either
side: 2e-2 was measured on thirty layers (log-probs 0.22), so only gross faults show; verify in float32 first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from braidrl.configs.trainer.config import TrainerConfig
from braidrl.trainer.model.loading import PROBE_TOLERANCE
from braidrl.trainer.model.policy import Policy, load_policy
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.loss import mismatch_kl
from braidrl.trainer.verify.probe import Batches, Gradient, Probe, largest_element
from braidrl.transport.types import TrainingBatch, TrainingSample, decode_batch, encode

GRADIENT_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
SAMPLER_TOLERANCE = {"float32": 1e-3, "bfloat16": 1.0}
LARGEST_ROW = 4096
"""Tokens that a row of the split check may have where the config has shorter ones."""
PLAIN_POSITIONS = 512
"""Last tokens of a sample whose full-vocabulary logits the plain forward makes."""

CUT_REMEDY = (
    "what a loss is given in one call depends on the cut, so a loss of your own must return a sum over its tokens, "
    "never a mean, and keep no state; with a built-in one, compare in float32 (--model.dtype float32) and report it"
)
NO_GRADIENT_REMEDY = (
    "the gradient is 0 or not finite, so nothing is compared: name the weights that sampled the batch (--model.path), "
    "look whether a protection masks every token, and whether a loss of your own uses the trainer's log-probs"
)
SAMPLER_REMEDY = (
    "sampler and trainer compute different distributions: serve the type that is trained, look for an engine option "
    "that changes logits, and compare in float32 (--model.dtype float32)"
)
PACKING_REMEDY = (
    "this model computes something that packed rows do not reproduce at these lengths; lower seq_len, or use an "
    "architecture with plain softmax attention in every layer"
)


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    worst: float
    """Value compared with `tolerance`. NaN fails."""
    tolerance: float
    remedy: str
    """Remedy if the check fails."""
    figures: dict[str, float] = field(default_factory=dict)
    """All that was measured, by name."""

    @property
    def ok(self) -> bool:
        return self.worst <= self.tolerance


class Cut(NamedTuple):
    """A way to divide a batch."""

    name: str
    max_tokens: int
    """Maximum tokens per row. 1: each sample has its own row."""
    world_size: int = 1
    """Ranks, each of which packs its part."""
    order: Sequence[int] | None = None
    """A permutation of the samples."""


def differentiate_alone(probe: Probe, batches: Batches) -> Gradient:
    """Reference for every split: each sample in its own row, in order, on one process."""
    found = probe.differentiate(batches.ordered(), 1)
    return found._replace(gradient=[part.clone() for part in found.gradient])


def cut_check(probe: Probe, batches: Batches, cut: Cut, expected: Gradient) -> Check:
    """One cut against `expected`, on one process."""
    found = probe.differentiate(batches.ordered(cut.order), cut.max_tokens, cut.world_size)
    return compare(cut.name, found, expected, probe.config.model.dtype)


def cuts(samples: Sequence[TrainingSample], row_tokens: int, seed: int) -> list[Cut]:
    """Rows of several lengths, samples in several orders, and simulated ranks, where some rows may be empty."""
    total = sum(len(sample.token_ids) for sample in samples)
    longest = min(total, max(LARGEST_ROW, row_tokens))
    names = {max(1, longest // 3): "short rows", longest: "long rows" if longest < total else "one row"}
    if row_tokens <= longest:
        names[row_tokens] = "rows as configured"
    found = [Cut(f"split: {name} ({tokens} tokens)", tokens) for tokens, name in sorted(names.items())]
    orders = {
        "reversed": range(len(samples))[::-1],
        "shuffled": np.random.default_rng(seed).permutation(len(samples)).tolist(),
    }
    found += [Cut(f"order: {name}", longest, order=order) for name, order in orders.items()]
    return [
        *found,
        Cut("ranks: 2, simulated", max(1, longest // 3), world_size=2),
        Cut("ranks: 3, simulated", 1, world_size=3),
    ]


def rank_check(probe: Probe, batches: Batches, expected: Gradient | None) -> Check | None:
    """The real processes, each with its shard, against `expected`. The first one holds that and gets the check."""
    world_size = probe.parallel.world_size
    found = probe.differentiate(batches.ordered(), probe.row_tokens, world_size)
    if expected is None:
        return None
    return compare(f"ranks: {world_size}, real (FSDP2)", found, expected, probe.config.model.dtype)


def share(samples: Sequence[TrainingSample] | None, parallel: Parallel) -> list[TrainingSample]:
    """The first process's samples, on every process (all call it together)."""
    data = b"" if samples is None else encode(TrainingBatch(step=1, samples=list(samples)))
    size = parallel.all_reduce(torch.tensor([len(data)], device=parallel.device))
    wire = torch.zeros(int(size), dtype=torch.uint8, device=parallel.device)
    if samples is not None:
        wire.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return decode_batch(parallel.all_reduce(wire).cpu().numpy().tobytes()).samples


def compare(name: str, found: Gradient, expected: Gradient, dtype: str) -> Check:
    """The loss difference relative to the samples' absolute losses, that of the gradient to the largest element that it
    had while the samples were summed up."""
    pairs = list(zip(found.gradient, expected.gradient, strict=True))
    # numpy's maximum is NaN where anything is
    difference = float(np.max([largest_element(one - other) for one, other in pairs]))
    loss = abs(found.loss - expected.loss)
    figures = {
        "loss_absolute": loss,
        "loss_relative": _ratio(loss, expected.scale),
        "gradient_absolute": difference,
        "gradient_relative": _ratio(difference, expected.largest),
    }
    if not 0 < expected.largest < np.inf:
        return Check(name, np.nan, GRADIENT_TOLERANCE[dtype], NO_GRADIENT_REMEDY, figures)
    worst = float(np.max([figures["loss_relative"], figures["gradient_relative"]]))
    return Check(name, worst, GRADIENT_TOLERANCE[dtype], CUT_REMEDY, figures)


def sampler_check(probe: Probe, sampled: Sequence[TrainingSample]) -> Check:
    """Compare the log-probs of an engine for its sampled tokens with the trainer's forward on the same weights."""
    found = probe.logprobs(probe.policy, sampled)
    x, mu = (
        torch.from_numpy(
            np.concatenate([row[sample.mask] for row, sample in zip(rows, sampled, strict=True)])
        ).double()
        for rows in (found, [sample.sampling_logprobs for sample in sampled])
    )
    figures = {
        "worst": largest_element(x - mu),
        "mean": float((x - mu).abs().mean()),
        "mismatch_kl": float(mismatch_kl(x - mu).mean()),
    }
    tolerance = SAMPLER_TOLERANCE[probe.config.model.dtype]
    return Check("sampler: log-probs", figures["worst"], tolerance, SAMPLER_REMEDY, figures)


def packing_check(probe: Probe, samples: Sequence[TrainingSample]) -> Check:
    """The packed forward against the plain Hugging Face one, a sample at a time. Both compute in float32 whatever the
    config says, for this is about who attends to whom."""
    plain, policy = _plain_model(probe.config), Policy(probe.model, torch.float32)
    plain.to(probe.parallel.device).eval()  # type: ignore[arg-type]
    if probe.config.lora is not None:  # whose base may be stored in another type
        policy = load_policy(_in_float32(probe.config), probe.parallel)
    packed = probe.logprobs(policy, samples)
    differences = []
    for sample, row in zip(samples, packed, strict=True):
        expected = _plain_logprobs(plain, sample)
        if len(expected):
            differences.append(torch.from_numpy(row[-len(expected) :]) - expected.cpu())
    joined = torch.cat(differences)
    figures = {"worst": largest_element(joined), "mean": float(joined.abs().mean())}
    return Check("packed forward: log-probs", figures["worst"], PROBE_TOLERANCE, PACKING_REMEDY, figures)


def _plain_model(config: TrainerConfig) -> PreTrainedModel:
    """The policy that a run starts from, as anybody would load it."""
    model = AutoModelForCausalLM.from_pretrained(
        config.model.path, dtype=torch.float32, trust_remote_code=config.model.trust_remote_code
    )
    if config.lora is None or config.lora.path is None:
        return model
    from braidrl.trainer.model.lora import merged  # only here: peft is an extra

    return merged(model, config.lora.path)


def _in_float32(config: TrainerConfig) -> TrainerConfig:
    return config.model_copy(update={"model": config.model.model_copy(update={"dtype": "float32"})})


@torch.no_grad()
def _plain_logprobs(model: torch.nn.Module, sample: TrainingSample) -> Tensor:
    """Return the last positions of a sample, at most `PLAIN_POSITIONS` and never the first."""
    ids = torch.from_numpy(sample.token_ids).long().to(next(model.parameters()).device)
    count = min(PLAIN_POSITIONS, len(ids) - 1)
    logits = model(input_ids=ids[None, :], use_cache=False, logits_to_keep=count + 1).logits[0, :-1]
    logprobs = (logits.double() / sample.temperature).log_softmax(-1)
    return logprobs.gather(-1, ids[len(ids) - count :, None])[:, 0]


def _ratio(difference: float, scale: float) -> float:
    if difference == 0:
        return 0.0
    return difference / scale if scale else np.inf
