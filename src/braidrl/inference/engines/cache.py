"""Keys and values of the sequences in flight, and of prompts that siblings will ask for again."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

FIRST_SLOTS = 4
FIRST_LENGTH = 256
SHORTEST_PREFIX = 16
"""Tokens; a shorter shared prefix is cheaper to compute again than to copy."""

KeyValues = list[tuple[Tensor, Tensor]]
"""A sequence's keys and values per layer, each [kv_heads, length, head_dim]."""


class SlotCache:
    """One slot a sequence; per layer keys and values [slots, kv_heads, length, head_dim], grown by doubling.

    Layers take their shapes from what is first written, so that any attention geometry fits. Memory starts as
    zeros: a masked position still meets a weight of 0, and 0 times garbage may be NaN.
    """

    def __init__(self, max_slots: int, max_length: int) -> None:
        self.max_slots = max_slots
        self.max_length = max_length
        self.free()

    def free(self) -> None:
        """Give all memory back; it starts anew, as small as at first."""
        self.slots = min(FIRST_SLOTS, self.max_slots)
        self.length = min(FIRST_LENGTH, self.max_length)
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def nbytes(self) -> int:
        """Memory of the keys and values."""
        return sum(tensor.nbytes for pair in self.layers.values() for tensor in pair)

    def reserve(self, slots: int, length: int) -> None:
        """Make room for `slots` sequences of `length` tokens."""
        wanted_slots = _grown(self.slots, slots, self.max_slots)
        wanted_length = _grown(self.length, length, self.max_length)
        if (wanted_slots, wanted_length) == (self.slots, self.length):
            return
        for index, pair in self.layers.items():
            self.layers[index] = tuple(_enlarged(old, wanted_slots, wanted_length) for old in pair)  # type: ignore[assignment]
        self.slots, self.length = wanted_slots, wanted_length

    def layer(self, index: int, key_HTD: Tensor, value_HTD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer; a new one is shaped for what is about to be written."""
        if index not in self.layers:
            self.layers[index] = (self._allocate(key_HTD), self._allocate(value_HTD))
        return self.layers[index]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        for pair in self.layers.values():
            for tensor in pair:
                tensor[target, :, :length] = tensor[source, :, :length]

    def read(self, slot: int, length: int) -> KeyValues:
        """A copy of the first `length` positions."""
        return [(k[slot, :, :length].clone(), v[slot, :, :length].clone()) for k, v in self.layers.values()]

    def fill(self, slot: int, content: KeyValues, length: int) -> None:
        """Put the first `length` positions of `content` into a slot."""
        for pair, stored in zip(self.layers.values(), content):
            for tensor, source in zip(pair, stored):
                tensor[slot, :, :length] = source[:, :length]

    def clear(self) -> None:
        """Forget everything, so that nothing (not even a NaN) outlives the weights that made it."""
        for pair in self.layers.values():
            for tensor in pair:
                tensor.zero_()

    def _allocate(self, like_HTD: Tensor) -> Tensor:
        heads, _, dim = like_HTD.shape
        return like_HTD.new_zeros(self.slots, heads, self.length, dim)


@dataclass(frozen=True)
class Prefix:
    """A prompt with the keys and values of its tokens."""

    token_ids: np.ndarray
    content: KeyValues


class PrefixCache:
    """Recent prompts under the current weights; beyond `max_tokens` the least recently used go first."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.entries: OrderedDict[tuple[str, tuple[int, ...]], Prefix] = OrderedDict()
        self.tokens = 0

    def keeps(self, token_ids: Sequence[int]) -> bool:
        """Whether a prompt of this length is worth keeping and fits."""
        return SHORTEST_PREFIX <= len(token_ids) <= self.max_tokens

    def longest(self, salt: str, token_ids: Sequence[int]) -> tuple[KeyValues, int] | None:
        """The entry of this salt that shares most tokens from the start, and how many; None when too few."""
        wanted = np.asarray(token_ids, np.int64)
        best, length = None, SHORTEST_PREFIX - 1
        for key, prefix in self.entries.items():
            if key[0] == salt and (common := _common(prefix.token_ids, wanted)) > length:
                best, length = key, common
        if best is None:
            return None
        self.entries.move_to_end(best)
        return self.entries[best].content, length

    def store(self, salt: str, token_ids: Sequence[int], content: KeyValues) -> None:
        """Keep a prompt that `keeps` has room for and that is not kept yet."""
        key = (salt, tuple(token_ids))
        self.entries[key] = Prefix(np.asarray(token_ids, np.int64), content)
        self.tokens += len(token_ids)
        while self.tokens > self.max_tokens:
            (_, dropped), _ = self.entries.popitem(last=False)
            self.tokens -= len(dropped)

    def clear(self) -> None:
        """Forget everything; entries never outlive the weights that made them."""
        self.entries.clear()
        self.tokens = 0


def _grown(current: int, needed: int, limit: int) -> int:
    while current < needed:
        current *= 2
    return min(current, limit)


def _enlarged(old: Tensor, slots: int, length: int) -> Tensor:
    new = old.new_zeros(slots, old.shape[1], length, old.shape[3])
    new[: old.shape[0], :, : old.shape[2]] = old
    return new


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the common start of two arrays."""
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    return int(differs.argmax()) if differs.any() else size
