"""Metrics of a step. Sums and denominators are reduced separately and divided once, at the end."""

import resource
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.components import reduce_metrics
from braidrl.transport.types import TrainingSample


class MetricSums:
    """Metrics under way: name to float64[2], a sum and its denominator (0: a plain sum)."""

    def __init__(self, sums: dict[str, Tensor] | None = None) -> None:
        self.sums = dict(sums or {})

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Add those of one micro batch, or of another part."""
        for name, pair in metrics.items():
            self.sums[name] = self.sums[name] + pair if name in self.sums else pair.double()

    def reduce(self, parallel: Parallel) -> Self:
        """The sums over all processes, on the CPU; each may have names that others lack."""
        names = parallel.union(self.sums)
        nothing = torch.zeros(2, dtype=torch.float64, device=parallel.device)
        sums = parallel.all_reduce(torch.stack([self.sums.get(name, nothing) for name in names])).cpu()
        return type(self)(dict(zip(names, sums, strict=True)))

    def values(self) -> dict[str, float]:
        """Return the values of the metrics."""
        found = dict(self.sums)
        for name in self.sums:  # of a component, or of an environment's part of it
            if name.startswith("masked_mismatch_kl") and f"un{name}" in found:
                found[name.removeprefix("masked_")] = found[name] + found[f"un{name}"]
        return reduce_metrics(found)


def batch_metrics(samples: Sequence[TrainingSample]) -> dict[str, float]:
    """Samples and tokens of a whole batch, prompts included: `samples`, `tokens`, `tokens/env/NAME`."""
    by_env: Counter[str] = Counter()
    for sample in samples:
        by_env[sample.env] += len(sample.token_ids)
    metrics: dict[str, float] = {"samples": len(samples), "tokens": by_env.total()}
    return metrics | {f"tokens/env/{env}": tokens for env, tokens in by_env.items()}


def staleness_metrics(step: int, samples: Sequence[TrainingSample]) -> dict[str, float]:
    """`staleness/mean` and `staleness/max` over samples: (step - 1) minus the oldest version in a sample."""
    ages = [step - 1 - sample.version_start for sample in samples]
    return {"staleness/mean": float(np.mean(ages)), "staleness/max": max(ages)} if ages else {}


def peak_memory_gib(device: torch.device) -> float:
    """Most memory so far in GiB: of the GPU, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def summary(metrics: dict[str, float]) -> str:
    """The few numbers of a step that a log line shows."""
    shown = ("loss", "entropy", "mismatch_kl", "grad_norm", "lr", "tokens", "tokens_per_second", "time/step")
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in shown if name in metrics)
