"""Forest attention: a token of a packed row attends to the past of its segment and to its ancestor segments.

Registered with transformers as the attention implementation `braid_forest`. The forest is passed as the keyword
argument `forest` of the model's forward, so that recomputed activations (checkpointing) receive it too.

On a CPU there is no mask. Each segment is one causal call over itself. Each segment with descendants is one full call
of all their queries over its keys. The softmax parts are merged by their log-sum-exp. The backward pass of each part
is the flash backward with the merged output and log-sum-exp, which gives exactly its share of the gradient.

On a GPU it is compiled flex attention with a block mask built from the forest. The tests run on a CPU and check the
mask. The compiled kernel has not been run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface

from braidrl.packing import Segment

NAME = "braid_forest"
UNSUPPORTED = ("softcap", "s_aux", "position_bias", "past_key_values", "cache")
"""Arguments that change what attention computes, which the packed forward does not implement."""


@dataclass(frozen=True)
class AttentionBlock:
    """Queries [query_start, query_stop) of a row over keys [key_start, key_stop), causal if they coincide."""

    query_start: int
    query_stop: int
    key_start: int
    key_stop: int
    causal: bool


class Forest:
    """Attention structure of a row of T tokens."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        """`segments` in depth-first order, as `pack` lays them out."""
        self.segments = tuple(segments)
        self.length = sum(segment.length for segment in segments)
        ends = [segment.start + segment.length for segment in segments]
        paths = [segment.length for segment in segments]  # tokens from the root to each segment's end
        for index, segment in enumerate(segments):
            if segment.parent is not None:
                paths[index] += paths[segment.parent]
        subtree_ends = list(ends)
        for index in reversed(range(len(segments))):
            parent = segments[index].parent
            if parent is not None:
                subtree_ends[parent] = max(subtree_ends[parent], subtree_ends[index])
        self.longest_path = max(paths)
        """Tokens of the longest sample in the row."""
        self.attention_calls = 0
        """Number of attention layers that have used it."""
        self.parts = [AttentionBlock(s.start, end, s.start, end, True) for s, end in zip(self.segments, ends)]
        self.parts += [
            AttentionBlock(end, subtree_end, segment.start, end, False)
            for segment, end, subtree_end in zip(self.segments, ends, subtree_ends)
            if subtree_end > end
        ]
        self._subtree_ends = subtree_ends
        self._block_mask: BlockMask | None = None

    def block_mask(self, device: torch.device) -> BlockMask:
        """For flex attention, made once a row: in depth-first order a key is seen from itself to the end of
        its segment's subtree."""
        if self._block_mask is None:
            lengths = torch.tensor([segment.length for segment in self.segments])
            subtree_end_T = torch.tensor(self._subtree_ends).repeat_interleave(lengths).to(device)

            def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
                return (key <= query) & (query < subtree_end_T[key])

            self._block_mask = create_block_mask(
                visible, None, None, self.length, self.length, device=str(device)
            )
        return self._block_mask


class _ForestAttention(torch.autograd.Function):
    """Attention in float32 or float64: query and out [1, H, T, D], key and value [1, G, T, D], G dividing H."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, forest: Forest, scale: float) -> Tensor:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output, lse = torch.empty_like(query), query.new_empty(query.shape[:3])
        for part in forest.parts:
            rows = _part(part, query, key, value)
            output_part, lse_part = flash(*rows, 0.0, part.causal, scale=scale)
            merged_output, merged_lse = _queries(part, output), _queries(part, lse)
            if part.causal:  # these come first and cover the row
                merged_output.copy_(output_part)
                merged_lse.copy_(lse_part)
            else:
                total = torch.logaddexp(merged_lse, lse_part)
                merged_output.lerp_(output_part, torch.exp(lse_part - total)[..., None])
                merged_lse.copy_(total)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.forest, ctx.scale = forest, scale
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        query, key, value, output, lse = ctx.saved_tensors
        grads = [torch.zeros_like(tensor) for tensor in (query, key, value)]
        for part in ctx.forest.parts:
            rows = _part(part, query, key, value)
            merged = (_queries(part, output), _queries(part, lse))
            grads_part = flash_backward(
                _queries(part, grad_output), *rows, *merged, 0.0, part.causal, scale=ctx.scale
            )
            for grad, grad_part in zip(_part(part, *grads), grads_part, strict=True):
                grad.add_(grad_part)
        return *grads, None, None


def _queries(part: AttentionBlock, tensor: Tensor) -> Tensor:
    return tensor[:, :, part.query_start : part.query_stop]


def _part(part: AttentionBlock, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    keys = slice(part.key_start, part.key_stop)
    return _queries(part, query), key[:, :, keys], value[:, :, keys]


@cache
def _compiled_flex_attention() -> Any:
    return torch.compile(flex_attention)


def forest_attention(
    query: Tensor, key: Tensor, value: Tensor, forest: Forest, scale: float | None = None
) -> Tensor:
    """Compute differentiable attention of one packed row, [1, H, T, D] in the dtype of `value`.

    query is [1, H, T, D]. key and value are [1, G, T, D] with G dividing H (grouped-query attention). Values may
    have fewer dimensions than keys. `scale` None is 1 / sqrt(D).
    """
    if query.shape[0] != 1 or query.shape[2] != forest.length or key.shape[2] != forest.length:
        raise ValueError(
            f"forest of {forest.length} tokens, but queries are {tuple(query.shape)} and keys "
            f"{tuple(key.shape)}; a packed row is a batch of one, without a key-value cache"
        )
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if query.device.type != "cpu":
        return _compiled_flex_attention()(
            query.to(value.dtype),  # under autocast, a norm or rotation leaves queries and keys in float32
            key.to(value.dtype),
            value,
            block_mask=forest.block_mask(query.device),
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    # the float32 kernels are faster than the bfloat16 ones
    dtype = torch.promote_types(value.dtype, torch.float32)
    # and want values as wide as keys, which those of latent attention are not
    padded = F.pad(value, (0, key.shape[-1] - value.shape[-1]))
    output = _ForestAttention.apply(query.to(dtype), key.to(dtype), padded.to(dtype), forest, scale)
    return output[..., : value.shape[-1]].to(value.dtype)


@torch.compiler.disable  # a compiled layer would be recompiled for every forest
def _attention_interface(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    forest: Forest | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The signature that transformers calls; returns [1, T, H, D]. Refuses what it does not compute."""
    name = type(module).__name__
    if forest is None:
        raise ValueError(
            f"{name}: forest attention was called without `forest`; pass forest=Forest(segments) to the "
            "model's forward, and use an architecture that hands its keyword arguments on to its attention"
        )
    refused = [key for key in UNSUPPORTED if kwargs.get(key) is not None]
    if refused or dropout:
        raise ValueError(
            f"{name}: packed training does not support {', '.join(refused or ['attention dropout'])}"
        )
    if sliding_window is not None and forest.longest_path > sliding_window:
        raise ValueError(
            f"{name}: a sample of {forest.longest_path} tokens is longer than the sliding window of "
            f"{sliding_window}; packed training computes full attention: lower seq_len or use another model"
        )
    forest.attention_calls += 1
    output = forest_attention(query, key, value, forest, scaling)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _attention_interface)
