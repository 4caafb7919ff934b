"""The loss entries of samples: which tokens they are, and every per-entry field of a row."""

from collections.abc import Sequence

import numpy as np

from braidrl.packing.streams import streams_of
from braidrl.transport.types import TrainingSample

ENTRY_FIELDS = (
    *("hidden_index", "targets", "sample_index", "temperature", "rl_weights", "ce_weights", "ref_kl_weights"),
    *("advantages", "inference_logprobs", "ref_logprobs"),
)
"""Per-entry fields of `MicroBatch`: integers are i64, the others float32, or float64 where a sample's stream is."""


class Path:
    """One sample on its way into a row: the tokens that its entries need, and the entries."""

    def __init__(self, index: int, sample: TrainingSample, extra: dict[str, np.ndarray]) -> None:
        self.index, self.sample, self.streams = index, sample, streams_of(index, sample)
        self.extra = extra
        self.entries = np.flatnonzero(sum(self.streams))
        self.tokens = sample.token_ids[: self.entries[-1] if self.entries.size else 0]
        # big-endian bytes order like the numbers; equal paths keep the order of the batch
        self.sort_key = (self.tokens.astype(">u4").tobytes(), index)

    def columns(self, where: np.ndarray) -> dict[str, np.ndarray]:
        """The per-entry fields of `MicroBatch`; `where` i64 is the row index of each of `tokens`."""
        sample = self.sample
        absent = np.full(len(sample.token_ids), np.nan, np.float32)
        streams: dict[str, np.ndarray] = {
            "targets": sample.token_ids.astype(np.int64),
            "temperature": np.full(len(sample.token_ids), sample.temperature, np.float32),
            "sample_index": np.full(len(sample.token_ids), self.index),
            "rl_weights": self.streams.rl,
            "ce_weights": self.streams.ce,
            "ref_kl_weights": self.streams.ref_kl,
            "advantages": absent if sample.advantages is None else sample.advantages,
            "inference_logprobs": sample.sampling_logprobs,
            "ref_logprobs": absent if sample.ref_logprobs is None else sample.ref_logprobs,
        }
        entries = {name: stream[self.entries] for name, stream in (streams | self.extra).items()}
        return entries | {"hidden_index": where[self.entries - 1]}

    def heads(self, width: int) -> tuple[np.ndarray, np.ndarray]:
        """`head_ids` and `head_logprobs` of its entries, padded to `width`; entries that were not sampled are pads."""
        ids = np.full((len(self.entries), width), -1, np.int64)
        logprobs = np.full((len(self.entries), width), -np.inf, np.float32)
        if self.sample.head_ids is not None and self.sample.head_logprobs is not None:
            sampled = self.sample.mask[self.entries]
            rows = np.cumsum(self.sample.mask)[self.entries[sampled]] - 1
            real = self.sample.head_ids[rows] >= 0
            known = self.sample.head_ids.shape[1]
            ids[sampled, :known] = self.sample.head_ids[rows]
            logprobs = logprobs.astype(self.sample.head_logprobs.dtype)
            logprobs[sampled, :known] = np.where(real, self.sample.head_logprobs[rows], -np.inf)
        return ids, logprobs


def entry_fields(paths: list[tuple[Path, np.ndarray]], extra: Sequence[str]) -> dict[str, np.ndarray]:
    """`ENTRY_FIELDS` and the streams named in `extra`, end to end; each path comes with the row index of its tokens."""
    columns = [path.columns(where) for path, where in paths]
    integers = ("hidden_index", "targets", "sample_index")
    return {
        name: np.concatenate(
            [np.zeros(0, np.int64 if name in integers else np.float32), *(column[name] for column in columns)]
        )
        for name in (*ENTRY_FIELDS, *extra)
    }


def head_width(paths: Sequence[Path]) -> int | None:
    """The most tokens that a head has in the batch; None where no sample has heads.

    Raises `ValueError` naming a sample that has rl members but no heads, while another has some.
    """
    widths = [path.sample.head_ids.shape[1] for path in paths if path.sample.head_ids is not None]
    if not widths:
        return None
    for path in paths:
        if path.sample.head_ids is None and path.streams.rl.any():
            raise ValueError(
                f"sample {path.index} (env {path.sample.env!r}, trace {path.sample.trace_id!r}) has rl members and no "
                f"head, while other samples have one; every sampled token needs the sampler's head: sample it again"
            )
    return max(widths)


def head_fields(paths: Sequence[Path], width: int | None) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return `MicroBatch.head_ids` and `head_logprobs`. `paths` are in the order of their entries."""
    if width is None:
        return None, None
    nothing = np.zeros((0, width), np.int64), np.zeros((0, width), np.float32)
    ids, logprobs = zip(nothing, *(path.heads(width) for path in paths), strict=True)
    return np.concatenate(ids), np.concatenate(logprobs)
