"""Exact per-token values of the trainer for some samples of each step, which `braid report` shows.

The *pull* of a token is -dL/dx, the direction and size in which the loss moves its log-prob, without the regularisers
of `RLObjective`. It is 0 where a trust region, a clip or a mask has removed the token.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from braidrl.packing import Normalisers
from braidrl.packing.streams import streams_of
from braidrl.trainer.model.forward import DeviceMicroBatch, TokenOutputs
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.batch import StepBatch
from braidrl.trainer.rl.components import component_loss
from braidrl.trainer.rl.objective import RLObjective
from braidrl.transport.types import TrainingSample
from braidrl.utils.publish import publish_bytes

COMPUTED = ("logprobs", "entropy", "pull", "micro_batch")
"""Rows of `TokenRecorder.values`; entries of one sample are all of one micro batch."""
GOLDEN = 0.6180339887498949


class TokenRecorder:
    """Recorder of the per-token values of one step. Every process has one, and `write` gathers them.

    Args:
        samples: The whole batch.
        limit: Maximum number of tokens of the recorded samples, prompts included. They are spread over the batch.
    """

    def __init__(self, samples: Sequence[TrainingSample], limit: int, parallel: Parallel) -> None:
        self.samples = samples
        self.parallel = parallel
        self.chosen = spread([len(sample.token_ids) for sample in samples], limit)
        sizes = [len(samples[index].token_ids) for index in self.chosen]
        starts = np.cumsum([0, *sizes])
        self.starts = {id(samples[index]): int(start) for index, start in zip(self.chosen, starts)}
        """First column of each chosen sample in `values`."""
        shape = len(COMPUTED), int(starts[-1])
        self.values = torch.zeros(shape, dtype=torch.float64, device=parallel.device)
        self.places: dict[int, tuple[StepBatch, int, int]] = {}
        """Mini batch of each sample, its number and the sample's index in it, by `id(sample)`."""
        self.mini_batches = 0
        self.rows = 0
        self.offsets = torch.zeros(0, dtype=torch.long)

    def begin(self, part: StepBatch) -> None:
        """Start recording this mini batch."""
        for index, sample in enumerate(part.samples):
            self.places[id(sample)] = part, self.mini_batches, index
        offsets = [self.starts.get(id(sample), -1) for sample in part.samples]
        self.offsets = torch.tensor(offsets, device=self.parallel.device)
        self.mini_batches += 1
        self.rows = 0

    def take(
        self, micro: DeviceMicroBatch, outputs: TokenOutputs, objective: RLObjective, normalisers: Normalisers
    ) -> None:
        """Take the chosen entries of one row of this process, after its backward."""
        offsets = self.offsets[micro.sample_index]
        entries = (offsets >= 0).nonzero().squeeze(-1)
        number = self.rows * self.parallel.world_size + self.parallel.rank
        self.rows += 1
        if not len(entries):
            return
        pull = pull_of(micro, outputs, objective, normalisers)
        computed = (outputs.logprobs.detach(), outputs.entropy.detach(), pull, torch.full_like(pull, number))
        positions = micro.position_ids[micro.hidden_index] + 1
        where = (offsets + positions)[entries]
        self.values[:, where] = torch.stack(computed)[:, entries].to(self.values)

    def write(self, path: Path, step: int) -> None:
        """Publish a JSON line a sample of the batch, in its order; every process calls it, the first writes."""
        values = self.parallel.all_reduce(self.values).cpu().numpy()
        if self.parallel.leads:
            encoder = msgspec.json.Encoder()
            lines = [encoder.encode(record) for record in self._records(values, step)]
            publish_bytes(path, b"".join(line + b"\n" for line in lines))

    def _records(self, values: np.ndarray, step: int) -> Iterator[dict[str, Any]]:
        for index, sample in enumerate(self.samples):
            record = {
                "step": step,
                "episode": sample.episode_id,
                "trace": sample.trace_id,
                "branch": sample.branch,
                "env": sample.env,
                "tokens": len(sample.token_ids),
            }
            if (start := self.starts.get(id(sample))) is not None:
                own = values[:, start : start + len(sample.token_ids)]
                record |= self._streams(index, sample, own)
            yield record

    def _streams(self, index: int, sample: TrainingSample, values: np.ndarray) -> dict[str, Any]:
        """The entries of a chosen sample: where they are, what they carried, and what came of it. All-zero weights
        and streams that the sample lacks are left out."""
        weights = streams_of(index, sample)
        entries = np.flatnonzero(sum(weights))
        computed = dict(zip(COMPUTED, values[:, entries], strict=True))
        carried = {name: stream for name, stream in weights._asdict().items() if stream.any()}
        for name in ("advantages", "ref_logprobs"):
            if (stream := getattr(sample, name)) is not None:
                carried[name] = stream
        part, mini_batch, place = self.places.get(id(sample), (StepBatch([]), None, 0))
        carried |= {name: streams[place] for name, streams in part.extra.items()}
        row = computed.pop("micro_batch")
        record: dict[str, Any] = {"mini_batch": mini_batch, "micro_batch": int(row[0]) if len(row) else None}
        streams = {"sampling_logprobs": sample.sampling_logprobs} | carried
        record |= {"positions": entries.tolist()}
        record |= {name: stream.tolist() for name, stream in computed.items()}
        return record | {name: stream[entries].tolist() for name, stream in streams.items()}


def pull_of(
    micro: DeviceMicroBatch, outputs: TokenOutputs, objective: RLObjective, normalisers: Normalisers
) -> torch.Tensor:
    """-dL/dx of every entry, float[L]. Only the loss is differentiated, once more; the model is not."""
    heads = None if outputs.head_logprobs is None else outputs.head_logprobs.detach()
    logprobs = outputs.logprobs.detach().clone().requires_grad_()
    fixed = TokenOutputs(logprobs, outputs.entropy.detach(), heads)
    bare = dataclasses.replace(objective, entropy_coef=0.0, reference_kl=None)
    loss, _ = component_loss(fixed, micro, bare, normalisers)
    return 0 - torch.autograd.grad(loss, logprobs)[0]  # no negative zeros


def spread(sizes: Sequence[int], limit: int) -> list[int]:
    """Indexes, ascending, that lie evenly over `sizes` and of which the sizes sum to `limit` at most."""
    order = sorted(range(len(sizes)), key=lambda index: (index + 1) * GOLDEN % 1)
    chosen, total = [], 0
    for index in order:
        if total + sizes[index] <= limit:
            chosen.append(index)
            total += sizes[index]
    return sorted(chosen)
