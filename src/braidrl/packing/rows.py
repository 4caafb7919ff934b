"""Samples to packed rows: as few tokens as possible, as many rows on every rank, nothing dropped.

A row is a forest of segments. Samples that begin alike share the segments of their common prefix (a radix
tree over token ids), so the prompt of eight siblings, or the first turns of two branches, is computed once. A
row holds only what predicts a loss entry: the tokens after a sample's last predictor train nothing and are
left out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from braidrl.packing.streams import COMPONENTS, streams_of
from braidrl.transport.types import TrainingSample

ENTRY_FIELDS = {
    **dict.fromkeys(("hidden_index", "targets", "sample_index"), np.int64),
    **dict.fromkeys(("temperature", "rl_weights", "ce_weights", "ref_kl_weights"), np.float32),
    **dict.fromkeys(("advantages", "inference_logprobs", "ref_logprobs"), np.float32),
}
"""Per-entry fields of `MicroBatch` and their dtypes."""


class Segment(NamedTuple):
    """A stretch of a row. Its tokens attend to their own past in it and to every token of its ancestors, and
    their positions continue along that path. Segments stand in depth-first order: descendants follow
    immediately."""

    start: int
    """Row index of its first token."""
    length: int
    """Tokens, at least 1."""
    parent: int | None
    """Index of the segment that it continues; None starts at position 0."""


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """One packed row for one forward: T tokens, and L loss entries, ordered by sample and then by position.

    An entry is a token that is a member of at least one component. Entries of several samples may share a
    `hidden_index`. A micro batch that only fills up a rank has one token and no entry.
    """

    token_ids: np.ndarray
    """i64[T]."""
    position_ids: np.ndarray
    """i64[T]: position of the token in its sample."""
    segments: tuple[Segment, ...]
    """They cover the row without gaps."""
    hidden_index: np.ndarray
    """i64[L]: row index of the token whose hidden state predicts the entry."""
    targets: np.ndarray
    """i64[L]: the predicted token."""
    temperature: np.ndarray
    """f32[L] > 0: the sampling temperature."""
    sample_index: np.ndarray
    """i64[L]: index of the entry's sample among those given to `pack`."""
    rl_weights: np.ndarray
    """f32[L] >= 0; 0 is no member of `rl`."""
    ce_weights: np.ndarray
    """f32[L] >= 0; 0 is no member of `ce`."""
    ref_kl_weights: np.ndarray
    """f32[L] >= 0; 0 is no member of `ref_kl`."""
    advantages: np.ndarray
    """f32[L]; NaN where the sample has none."""
    inference_logprobs: np.ndarray
    """f32[L]: log-probs of the sampler, as the sample carries them (0 off its mask)."""
    ref_logprobs: np.ndarray
    """f32[L]: log-probs of the reference; NaN where absent."""
    members: dict[str, dict[str, np.ndarray]]
    """Component -> environment -> i64[M]: its entries in this row, ascending. Every row of a batch, on every
    rank, lists each environment that has members of the component anywhere in the batch, in one order."""


def pack(
    samples: Sequence[TrainingSample], *, max_tokens: int, rank: int = 0, world_size: int = 1
) -> list[MicroBatch]:
    """The rows of one rank, at most `max_tokens` long; a single longer sample gets a row of its own.

    Every rank that is given the same samples gets the same number of rows of about equal length.

    Raises:
        ValueError: naming the sample. A stream's length is not the number of tokens; a weight is negative or
            not finite; a member lacks its advantage or reference log-prob; or a member is the first token of
            its sample, which no token predicts.
    """
    if max_tokens < 1 or not 0 <= rank < world_size:
        seen = f"max_tokens={max_tokens}, rank={rank}, world_size={world_size}"
        raise ValueError(f"{seen}: need max_tokens >= 1 and 0 <= rank < world_size")
    paths = [_Path(index, sample) for index, sample in enumerate(samples)]
    paths = sorted((path for path in paths if path.entries.size), key=lambda path: path.sort_key)
    envs = {
        name: sorted({path.sample.env for path in paths if getattr(path.streams, name).any()})
        for name in COMPONENTS
    }
    rows = _balanced_rows(paths, max_tokens, world_size)
    mine = [
        rows[first : first + world_size][rank if turn % 2 == 0 else world_size - 1 - rank]
        for turn, first in enumerate(range(0, len(rows), world_size))
    ]
    return [_build_row([paths[index] for index in sorted(row)], envs) for row in mine]


class _Path:
    """One sample on its way into a row: the tokens that its entries need, and the entries."""

    def __init__(self, index: int, sample: TrainingSample) -> None:
        self.index, self.sample, self.streams = index, sample, streams_of(index, sample)
        self.entries = np.flatnonzero(sum(self.streams))
        self.tokens = sample.token_ids[: self.entries[-1] if self.entries.size else 0]
        # big-endian bytes order like the numbers; equal paths keep the order of the batch
        self.sort_key = (self.tokens.astype(">u4").tobytes(), index)

    def columns(self, where: np.ndarray) -> dict[str, np.ndarray]:
        """The per-entry fields of `MicroBatch`; `where` i64 is the row index of each of `tokens`."""
        sample = self.sample
        absent = np.full(len(sample.token_ids), np.nan)
        streams = {
            "targets": sample.token_ids,
            "temperature": np.full(len(sample.token_ids), sample.temperature),
            "sample_index": np.full(len(sample.token_ids), self.index),
            "rl_weights": self.streams.rl,
            "ce_weights": self.streams.ce,
            "ref_kl_weights": self.streams.ref_kl,
            "advantages": absent if sample.advantages is None else sample.advantages,
            "inference_logprobs": sample.sampling_logprobs,
            "ref_logprobs": absent if sample.ref_logprobs is None else sample.ref_logprobs,
        }
        entries = {name: stream[self.entries] for name, stream in streams.items()}
        return entries | {"hidden_index": where[self.entries - 1]}


def _balanced_rows(paths: list[_Path], max_tokens: int, world_size: int) -> list[list[int]]:
    """Rows as path indices, longest first, a multiple of `world_size` (empty ones pad): the fewest that hold
    `max_tokens` each, then the least capacity that still needs no more of them."""
    lengths = [len(path.tokens) for path in paths]
    shared = [0, *(_common_prefix(a.tokens, b.tokens) for a, b in pairwise(paths))][: len(paths)]
    rows = _fill(lengths, shared, max_tokens)
    count = -(-max(len(rows), 1) // world_size) * world_size
    low, high = 1, max_tokens
    while low < high:
        middle = (low + high) // 2
        tighter = _fill(lengths, shared, middle)
        if len(tighter) <= count:
            rows, high = tighter, middle
        else:
            low = middle + 1
    return rows + [[]] * (count - len(rows))


def _fill(lengths: list[int], shared: list[int], capacity: int) -> list[list[int]]:
    """First-fit decreasing of pieces: runs of sorted paths that share a quarter with their neighbour."""
    pieces: list[tuple[int, list[int]]] = []
    for index, (length, common) in enumerate(zip(lengths, shared, strict=True)):
        if pieces and 4 * common >= length and pieces[-1][0] + length - common <= capacity:
            size, piece = pieces[-1]
            pieces[-1] = (size + length - common, [*piece, index])
        else:
            pieces.append((length, [index]))
    rows: list[list[int]] = []
    sizes: list[int] = []
    for size, piece in sorted(pieces, key=lambda piece: -piece[0]):
        row = next((row for row, used in enumerate(sizes) if used + size <= capacity), len(rows))
        if row == len(rows):
            rows.append([])
            sizes.append(0)
        rows[row] += piece
        sizes[row] += size
    return [rows[row] for row in sorted(range(len(rows)), key=lambda row: -sizes[row])]


def _common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    length = min(len(a), len(b))
    differ = a[:length] != b[:length]
    return int(differ.argmax()) if differ.any() else length


def _build_row(paths: list[_Path], envs: dict[str, list[str]]) -> MicroBatch:
    """Lay sorted paths out as a radix tree in depth-first order, and point every entry at its predictor;
    `envs` are those of each component."""
    segments: list[Segment] = []
    stretches: list[tuple[np.ndarray, int]] = []  # tokens of each segment, position of its first one
    where = [np.zeros(len(path.tokens), np.int64) for path in paths]  # row index of each token of each path
    cursor = 0
    stack: list[tuple[int, int, int, int | None]] = [(0, len(paths), 0, None)] if paths else []
    while stack:
        first, last, depth, parent = stack.pop()  # paths[first:last] agree before `depth`
        tokens = paths[first].tokens
        end = _common_prefix(tokens, paths[last - 1].tokens)  # sorted: what the outermost share, all share
        if end > depth:
            segments.append(Segment(cursor, end - depth, parent))
            stretches.append((tokens[depth:end], depth))
            for path in where[first:last]:
                path[depth:end] = np.arange(cursor, cursor + end - depth)
            parent = len(segments) - 1
            cursor += end - depth
        stack += reversed(_branches(paths, first, last, end, parent))
    if not segments:
        segments, stretches = [Segment(0, 1, None)], [(np.zeros(1, np.int64), 0)]
    in_order = sorted(zip(paths, where), key=lambda pair: pair[0].index)
    entries = _entries(in_order)
    return MicroBatch(
        token_ids=np.concatenate([tokens for tokens, _ in stretches]).astype(np.int64),
        position_ids=np.concatenate([np.arange(start, start + len(tokens)) for tokens, start in stretches]),
        segments=tuple(segments),
        members=_members([path for path, _ in in_order], entries, envs),
        **entries,
    )


def _branches(
    paths: list[_Path], first: int, last: int, depth: int, parent: int | None
) -> list[tuple[int, int, int, int | None]]:
    """Split the sorted run by its next token; paths that end here (they come first) have no branch."""
    while first < last and len(paths[first].tokens) == depth:
        first += 1
    heads = np.array([path.tokens[depth] for path in paths[first:last]])
    cuts = [first, *(first + 1 + np.flatnonzero(heads[1:] != heads[:-1])), last] if first < last else []
    return [(int(start), int(stop), depth, parent) for start, stop in pairwise(cuts)]


def _entries(paths: Iterable[tuple[_Path, np.ndarray]]) -> dict[str, np.ndarray]:
    columns = [path.columns(where) for path, where in paths]
    return {
        name: np.concatenate([np.zeros(0, dtype), *(column[name] for column in columns)]).astype(dtype)
        for name, dtype in ENTRY_FIELDS.items()
    }


def _members(
    paths: list[_Path], entries: dict[str, np.ndarray], envs: dict[str, list[str]]
) -> dict[str, dict[str, np.ndarray]]:
    """`MicroBatch.members`; `paths` stand in the order of their entries."""
    counts = np.array([path.entries.size for path in paths], np.int64)
    owner = np.repeat(np.array([path.sample.env for path in paths], np.str_), counts)
    return {
        name: {env: np.flatnonzero((entries[f"{name}_weights"] != 0) & (owner == env)) for env in known}
        for name, known in envs.items()
    }
