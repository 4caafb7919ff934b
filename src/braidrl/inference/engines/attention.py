"""Attention over the slot cache for any transformers model that uses the attention interface.

One forward processes a flat row of T tokens: one token of each decoding sequence, then spans of prompts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from braidrl.inference.engines.cache import SlotCache

NAME = "braid_slots"
UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Arguments of the attention interface that change the scores and are not implemented here."""


@dataclass(frozen=True)
class Span:
    """Tokens `start` to `start + count` (exclusive) of the sequence in `slot`, computed in one forward."""

    slot: int
    start: int
    count: int


@dataclass
class Layout:
    """Cache positions of the T tokens of one forward. The first `decoding` spans have one token each."""

    cache: SlotCache
    spans: Sequence[Span]
    decoding: int
    positions_T: Tensor = field(init=False)
    masks: dict[tuple[int | None, torch.dtype], Tensor] = field(default_factory=dict)
    """Additive masks of the decoding sequences by sliding window and dtype, shared by the layers."""

    def __post_init__(self) -> None:
        self.positions_T = torch.tensor(
            [p for span in self.spans for p in range(span.start, span.start + span.count)]
        )
        self.length = 1 + max((span.start for span in self.spans[: self.decoding]), default=0)
        decoding = self.spans[: self.decoding]
        self.even = len({span.start for span in decoding}) == 1
        slots = [span.slot for span in decoding]
        self.slots_B = torch.tensor(slots, dtype=torch.long)
        # Slots 0 to n-1 in order are a view of the cache. Any other selection needs a gather.
        self.dense = slots == list(range(len(slots)))
        self.rows: slice | Tensor = slice(self.decoding) if self.dense else self.slots_B

    def write(self, new_HTD: Tensor, store: Tensor) -> None:
        """Write the new keys or values of one layer to their positions in `store` [slots, kv_heads, length, D]."""
        decoded_BHD = new_HTD[:, : self.decoding].transpose(0, 1)
        if self.dense and self.even:
            store[: self.decoding, :, self.length - 1] = decoded_BHD
        elif self.decoding:
            store[self.slots_B, :, self.positions_T[: self.decoding]] = decoded_BHD
        offset = self.decoding
        for span in self.spans[self.decoding :]:
            chunk_HTD = new_HTD[:, offset : offset + span.count]
            store[span.slot, :, span.start : span.start + span.count] = chunk_HTD
            offset += span.count

    def decode_mask(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """Return an additive mask [decoding, 1, 1, length], or None if every token attends to all positions."""
        if self.even and (window is None or window >= self.length):
            return None
        key = (window, dtype)
        if key not in self.masks:
            last_B1 = self.positions_T[: self.decoding, None]
            at_L = torch.arange(self.length)
            seen_BL = at_L <= last_B1
            if window is not None:
                seen_BL &= at_L > last_B1 - window
            mask_BL = torch.zeros(seen_BL.shape, dtype=dtype).masked_fill_(~seen_BL, -torch.inf)
            self.masks[key] = mask_BL[:, None, None]
        return self.masks[key]


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    slots: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers' attention interface.

    Takes query [1, heads, T, D] and key and value [1, kv_heads, T, D] of the new tokens, returns [1, T, heads, D_v].
    `slots` is passed through the model's keyword arguments.
    """
    if slots is None:
        raise ValueError(
            f"{type(module).__name__} does not pass keyword arguments to its attention, which the embedded engine "
            "requires; serve this model with engine = 'vllm'"
        )
    for name in UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} needs {name}, which the embedded engine does not support; serve "
                "this model with engine = 'vllm'"
            )
    layer: int = module.layer_idx  # type: ignore[assignment]
    keys, values = slots.cache.layer(layer, key[0], value[0])
    slots.write(key[0], keys)
    slots.write(value[0], values)
    parts = []
    if slots.decoding:
        parts.append(_decode(query[0, :, : slots.decoding], keys, values, slots, scaling, sliding_window))
    offset = slots.decoding
    for span in slots.spans[slots.decoding :]:
        chunk_HTD = query[0, :, offset : offset + span.count]
        parts.append(_prefill(chunk_HTD, keys[span.slot], values[span.slot], span, scaling, sliding_window))
        offset += span.count
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[None], None


def _decode(
    query_HBD: Tensor, keys: Tensor, values: Tensor, layout: Layout, scaling: float | None, window: int | None
) -> Tensor:
    """Attend with one query token per sequence. Returns [B, heads, D_v].

    The query heads that share a key head are laid out as query positions, so keys and values need not be repeated.
    """
    heads, batch, dim = query_HBD.shape
    kv_heads = keys.shape[1]
    out = scaled_dot_product_attention(
        query_HBD.transpose(0, 1).reshape(batch, kv_heads, heads // kv_heads, dim),
        keys[layout.rows, :, : layout.length],
        values[layout.rows, :, : layout.length],
        attn_mask=layout.decode_mask(window, query_HBD.dtype),
        scale=scaling,
    )
    return out.reshape(batch, heads, -1)


def _prefill(
    query_HTD: Tensor, keys: Tensor, values: Tensor, span: Span, scaling: float | None, window: int | None
) -> Tensor:
    """Attend from a span of one sequence to all positions of its slot up to the span's end. Returns [T, heads, D_v]."""
    end = span.start + span.count
    causal = span.start == 0 and (window is None or window >= end)
    mask_TL = None
    if not causal:
        query_at_T1 = torch.arange(span.start, end)[:, None]
        key_at_L = torch.arange(end)
        mask_TL = key_at_L <= query_at_T1
        if window is not None:
            mask_TL &= key_at_L > query_at_T1 - window
    out_HTD = scaled_dot_product_attention(
        query_HTD[None],
        keys[None, :, :end],
        values[None, :, :end],
        attn_mask=mask_TL,
        is_causal=causal,
        scale=scaling,
        enable_gqa=query_HTD.shape[0] != keys.shape[0],
    )
    return out_HTD[0].transpose(0, 1)


def register() -> str:
    """Register the attention with transformers and return the name of the implementation."""
    from transformers import AttentionInterface

    function: Callable[..., Any] = slot_attention
    AttentionInterface.register(NAME, function)
    return NAME
