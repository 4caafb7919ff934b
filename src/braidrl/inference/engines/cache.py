"""Keys and values of running sequences, and a prefix cache for prompts that siblings will repeat."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

FIRST_SLOTS = 4
FIRST_LENGTH = 256
SHORTEST_PREFIX = 16
"""Minimum length of a cached prefix in tokens. A shorter one is faster to recompute than to copy."""

KeyValues = list[tuple[Tensor, Tensor]]
"""Keys and values of a sequence per layer, each [kv_heads, length, head_dim]."""


class SlotCache:
    """Key-value cache with one slot per sequence: per layer [slots, kv_heads, length, head_dim], grown by doubling.

    Each layer takes its shape from the first write, so any attention geometry fits. Memory is initialised to zeros:
    a masked position has weight 0, but 0 times uninitialised memory may be NaN.
    """

    def __init__(self, max_slots: int, max_length: int) -> None:
        self.max_slots = max_slots
        self.max_length = max_length
        self.free()

    def free(self) -> None:
        """Free all memory and reset the cache to its initial size."""
        self.slots = min(FIRST_SLOTS, self.max_slots)
        self.length = min(FIRST_LENGTH, self.max_length)
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def nbytes(self) -> int:
        """Size of the keys and values in bytes."""
        return sum(tensor.nbytes for pair in self.layers.values() for tensor in pair)

    def reserve(self, slots: int, length: int) -> None:
        """Grow the cache to hold `slots` sequences of `length` tokens."""
        wanted_slots = _grown(self.slots, slots, self.max_slots)
        wanted_length = _grown(self.length, length, self.max_length)
        if (wanted_slots, wanted_length) == (self.slots, self.length):
            return
        for index, pair in self.layers.items():
            self.layers[index] = tuple(_enlarged(old, wanted_slots, wanted_length) for old in pair)  # type: ignore[assignment]
        self.slots, self.length = wanted_slots, wanted_length

    def layer(self, index: int, key_HTD: Tensor, value_HTD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of one layer, allocated with the shape of the given tensors on first use."""
        if index not in self.layers:
            self.layers[index] = (self._allocate(key_HTD), self._allocate(value_HTD))
        return self.layers[index]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        for pair in self.layers.values():
            for tensor in pair:
                tensor[target, :, :length] = tensor[source, :, :length]

    def read(self, slot: int, length: int) -> KeyValues:
        """Return a copy of the first `length` positions of a slot."""
        return [(k[slot, :, :length].clone(), v[slot, :, :length].clone()) for k, v in self.layers.values()]

    def fill(self, slot: int, content: KeyValues, length: int) -> None:
        """Copy the first `length` positions of `content` to a slot."""
        for pair, stored in zip(self.layers.values(), content):
            for tensor, source in zip(pair, stored):
                tensor[slot, :, :length] = source[:, :length]

    def clear(self) -> None:
        """Zero the memory, so that no value (such as a NaN) outlives the weights that computed it."""
        for pair in self.layers.values():
            for tensor in pair:
                tensor.zero_()

    def _allocate(self, like_HTD: Tensor) -> Tensor:
        heads, _, dim = like_HTD.shape
        return like_HTD.new_zeros(self.slots, heads, self.length, dim)


@dataclass(frozen=True)
class Prefix:
    """Prompt with the keys and values of its tokens."""

    token_ids: np.ndarray
    content: KeyValues


class PrefixCache:
    """LRU cache of prompts computed with the current weights, of at most `max_tokens` tokens in total."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.entries: OrderedDict[tuple[str, tuple[int, ...]], Prefix] = OrderedDict()
        self.tokens = 0

    def keeps(self, token_ids: Sequence[int]) -> bool:
        """Return True if a prompt is long enough to be worth caching and fits."""
        return SHORTEST_PREFIX <= len(token_ids) <= self.max_tokens

    def longest(self, salt: str, token_ids: Sequence[int]) -> tuple[KeyValues, int] | None:
        """Return the entry with the longest common prefix and its length, or None if that is below the minimum.

        Only entries with the same salt are considered.
        """
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
        """Add a prompt for which `keeps` is True and which is not cached yet, evicting old entries if necessary."""
        key = (salt, tuple(token_ids))
        self.entries[key] = Prefix(np.asarray(token_ids, np.int64), content)
        self.tokens += len(token_ids)
        while self.tokens > self.max_tokens:
            (_, dropped), _ = self.entries.popitem(last=False)
            self.tokens -= len(dropped)

    def clear(self) -> None:
        """Remove all entries. They are only valid for the weights that computed them."""
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
    """Return the length of the common prefix of two arrays."""
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    return int(differs.argmax()) if differs.any() else size
