"""Samples to packed rows: as few tokens as possible, as many rows on every rank, nothing dropped.

A row is a forest of segments. Samples that begin alike share the segments of their common prefix (a radix
tree over token ids), so the prompt of eight siblings, or the first turns of two branches, is computed once. A
row holds only what predicts a loss entry: the tokens after a sample's last predictor train nothing and are
left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from braidrl.packing.entries import Path, entry_fields, head_fields, head_width
from braidrl.packing.streams import COMPONENTS
from braidrl.transport.types import TrainingSample


class Segment(NamedTuple):
    """A contiguous part of a row. Its tokens attend to earlier tokens of the segment and to every token of its
    ancestors, and positions continue along that path. Segments are in depth-first order: descendants follow
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
    """float[L] > 0: the sampling temperature."""
    sample_index: np.ndarray
    """i64[L]: index of the entry's sample among those given to `pack`."""
    rl_weights: np.ndarray
    """float[L] >= 0; 0 is no member of `rl`."""
    ce_weights: np.ndarray
    """float[L] >= 0; 0 is no member of `ce`."""
    ref_kl_weights: np.ndarray
    """float[L] >= 0; 0 is no member of `ref_kl`."""
    advantages: np.ndarray
    """float[L]; NaN where the sample has none."""
    inference_logprobs: np.ndarray
    """float[L]: log-probs of the sampler, as the sample carries them (0 off its mask)."""
    ref_logprobs: np.ndarray
    """float[L]: log-probs of the reference; NaN where absent."""
    extra: dict[str, np.ndarray]
    """float[L]: the entries' part of the extra streams that `pack` was given."""
    head_ids: np.ndarray | None
    """i64[L, K]: the sampler's most likely tokens at each entry, -1 pads; None where no sample has any."""
    head_logprobs: np.ndarray | None
    """float[L, K]: their log-probs; -inf at pads."""
    members: dict[str, dict[str, np.ndarray]]
    """Component -> environment -> i64[M]: its entries in this row, ascending. Every row of a batch, on every
    rank, lists each environment that has members of the component anywhere in the batch, in one order."""


def pack(
    samples: Sequence[TrainingSample],
    extra: Mapping[str, Sequence[np.ndarray]] | None = None,
    *,
    max_tokens: int,
    rank: int = 0,
    world_size: int = 1,
) -> list[MicroBatch]:
    """Pack samples into the rows of one rank, at most `max_tokens` long. A longer sample gets its own row.

    All ranks that pack the same samples get the same number of rows of about equal length. `extra` has further
    streams by name, one float[T] per sample.

    Raises:
        ValueError: Naming the sample, if the length of a stream differs from the number of tokens, a weight is
            negative or not finite, a member lacks its advantage or reference log-prob, or a member is the first
            token of its sample, which no token predicts.
    """
    if max_tokens < 1 or not 0 <= rank < world_size:
        seen = f"max_tokens={max_tokens}, rank={rank}, world_size={world_size}"
        raise ValueError(f"{seen}: need max_tokens >= 1 and 0 <= rank < world_size")
    paths = [
        Path(index, sample, {name: streams[index] for name, streams in (extra or {}).items()})
        for index, sample in enumerate(samples)
    ]
    paths = sorted((path for path in paths if path.entries.size), key=lambda path: path.sort_key)
    envs = {
        name: sorted({path.sample.env for path in paths if getattr(path.streams, name).any()})
        for name in COMPONENTS
    }
    width = head_width(paths)
    rows = _balanced_rows(paths, max_tokens, world_size)
    mine = [
        rows[first : first + world_size][rank if turn % 2 == 0 else world_size - 1 - rank]
        for turn, first in enumerate(range(0, len(rows), world_size))
    ]
    return [
        _build_row([paths[index] for index in sorted(row)], envs, list(extra or ()), width) for row in mine
    ]


def _balanced_rows(paths: list[Path], max_tokens: int, world_size: int) -> list[list[int]]:
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


def _build_row(
    paths: list[Path], envs: dict[str, list[str]], extra: Sequence[str], heads: int | None
) -> MicroBatch:
    """Lay sorted paths out as a radix tree in depth-first order, and point every entry at its predictor;
    `envs` are those of each component, `heads` is the width of heads."""
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
    entries = entry_fields(in_order, extra)
    head_ids, head_logprobs = head_fields([path for path, _ in in_order], heads)
    return MicroBatch(
        token_ids=np.concatenate([tokens for tokens, _ in stretches]).astype(np.int64),
        position_ids=np.concatenate([np.arange(start, start + len(tokens)) for tokens, start in stretches]),
        segments=tuple(segments),
        members=_members([path for path, _ in in_order], entries, envs),
        head_ids=head_ids,
        head_logprobs=head_logprobs,
        extra={name: entries.pop(name) for name in extra},
        **entries,
    )


def _branches(
    paths: list[Path], first: int, last: int, depth: int, parent: int | None
) -> list[tuple[int, int, int, int | None]]:
    """Split the sorted run by its next token; paths that end here (they come first) have no branch."""
    while first < last and len(paths[first].tokens) == depth:
        first += 1
    heads = np.array([path.tokens[depth] for path in paths[first:last]])
    cuts = [first, *(first + 1 + np.flatnonzero(heads[1:] != heads[:-1])), last] if first < last else []
    return [(int(start), int(stop), depth, parent) for start, stop in pairwise(cuts)]


def _members(
    paths: list[Path], entries: dict[str, np.ndarray], envs: dict[str, list[str]]
) -> dict[str, dict[str, np.ndarray]]:
    """Return `MicroBatch.members`. `paths` are in the order of their entries."""
    counts = np.array([path.entries.size for path in paths], np.int64)
    owner = np.repeat(np.array([path.sample.env for path in paths], np.str_), counts)
    return {
        name: {env: np.flatnonzero((entries[f"{name}_weights"] != 0) & (owner == env)) for env in known}
        for name, known in envs.items()
    }
