"""The exact trainer forward: log-probs and entropy of a packed row, only at its loss entries.

The full-vocabulary logits of a row never exist: the head runs over chunks of entries, and its backward pass
recomputes each chunk.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from braidrl.packing import MicroBatch
from braidrl.trainer.attention import Forest

CHUNK_ELEMENTS = 1 << 23
"""Logits that exist at a time."""

STREAMS = (
    "token_ids",
    "position_ids",
    "hidden_index",
    "targets",
    "temperature",
    "sample_index",
    "rl_weights",
    "ce_weights",
    "ref_kl_weights",
    "advantages",
    "inference_logprobs",
    "ref_logprobs",
)


@dataclass(frozen=True, eq=False)
class DeviceMicroBatch:
    """A `MicroBatch` as tensors on the model's device: the same fields; its segments are the forest."""

    forest: Forest
    token_ids: Tensor
    position_ids: Tensor
    hidden_index: Tensor
    targets: Tensor
    temperature: Tensor
    sample_index: Tensor
    rl_weights: Tensor
    ce_weights: Tensor
    ref_kl_weights: Tensor
    advantages: Tensor
    inference_logprobs: Tensor
    ref_logprobs: Tensor
    members: dict[str, dict[str, Tensor]]


def to_device(micro: MicroBatch, device: torch.device | str) -> DeviceMicroBatch:
    """Copy a packed row to a device."""
    streams = {name: torch.from_numpy(getattr(micro, name)).to(device) for name in STREAMS}
    members = {
        component: {env: torch.from_numpy(index).to(device) for env, index in envs.items()}
        for component, envs in micro.members.items()
    }
    return DeviceMicroBatch(forest=Forest(micro.segments), members=members, **streams)


class TokenOutputs(NamedTuple):
    """Of the L loss entries of a row."""

    logprobs: Tensor
    """float32[L] (float64 from a float64 model): log-prob of the target at the entry's temperature."""
    entropy: Tensor
    """float32[L] in nats, without gradient: of the distribution that the log-prob is from."""


@dataclass(frozen=True)
class Head:
    """How a model's last hidden states become logits: `softcap * tanh(scale * (h W + b) / softcap)`."""

    weight: Tensor
    """float[V, H]."""
    bias: Tensor | None
    """float[V]."""
    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self:
        """The head of any Hugging Face causal language model; `load_model` checks that it is all of it."""
        layer, config = model.get_output_embeddings(), model.config.get_text_config()
        scale = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1)
        softcap = getattr(config, "final_logit_softcapping", None)
        return cls(layer.weight, getattr(layer, "bias", None), scale, softcap)


def token_logprobs(
    model: PreTrainedModel, micro: DeviceMicroBatch, dtype: torch.dtype = torch.float32
) -> TokenOutputs:
    """Run a model from `load_model` over a packed row.

    `dtype` bfloat16 computes the transformer's matrix products in it (autocast); logits, softmax and every
    reduction are float32 all the same. Raises `ValueError` when the model cannot honour the forest exactly.
    """
    with torch.autocast(micro.token_ids.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        hidden = model.base_model(
            input_ids=micro.token_ids[None],
            position_ids=micro.position_ids[None],
            use_cache=False,
            forest=micro.forest,
        ).last_hidden_state[0]
    rows = hidden.index_select(0, micro.hidden_index)
    return head_logprobs(rows, Head.of(model), micro.targets, micro.temperature, dtype)


def head_logprobs(
    hidden: Tensor, head: Head, targets: Tensor, temperature: Tensor, dtype: torch.dtype = torch.float32
) -> TokenOutputs:
    """Log-softmax of logits / temperature at `targets`, differentiable in hidden states, weight and bias.

    hidden float[L, H], targets i64[L], temperature float[L] > 0. Logits and softmax are float32 (float64 for
    a float64 head); `dtype` bfloat16 rounds only the factors of the matrix products.
    """
    logprobs, entropy = _HeadLogprobs.apply(
        hidden, head.weight, head.bias, head.scale, head.softcap, targets, temperature, dtype
    )
    return TokenOutputs(logprobs, entropy)


class _HeadLogprobs(torch.autograd.Function):
    """Chunks of entries at a time; the backward pass recomputes a chunk's logits from their log-sum-exp."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        scale: float,
        softcap: float | None,
        targets: Tensor,
        temperature: Tensor,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        head = Head(weight, bias, scale, softcap)
        exact = torch.promote_types(weight.dtype, torch.float32)
        logprobs, entropy, lse = hidden.new_empty((3, len(hidden)), dtype=exact)
        for chunk in _chunks(hidden, weight):
            logits, _ = _scaled_logits(hidden[chunk], head, temperature[chunk], dtype)
            top = logits.amax(-1)
            exps = torch.exp(logits.sub_(top[:, None]))
            total = exps.sum(-1)
            log_total = total.log()
            logprobs[chunk] = logits.gather(-1, targets[chunk, None]).squeeze(-1) - log_total
            entropy[chunk] = log_total - torch.linalg.vecdot(exps, logits) / total
            lse[chunk] = log_total + top
        ctx.save_for_backward(hidden, weight, bias, targets, temperature, lse)
        ctx.scale, ctx.softcap, ctx.dtype = scale, softcap, dtype
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, grad_logprobs: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, temperature, lse = ctx.saved_tensors
        head = Head(weight, bias, ctx.scale, ctx.softcap)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(head.weight, dtype=lse.dtype)
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=lse.dtype)
        weight = weight.to(torch.bfloat16 if ctx.dtype == torch.bfloat16 else lse.dtype)
        for chunk in _chunks(hidden, weight):
            logits, slope = _scaled_logits(hidden[chunk], head, temperature[chunk], ctx.dtype)
            # d logprob / d logit_v = [v is the target] - p_v
            grad = logits.sub_(lse[chunk, None]).exp_().mul_(-grad_logprobs[chunk, None])
            grad.scatter_add_(-1, targets[chunk, None], grad_logprobs[chunk, None]).mul_(slope)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            grad = grad.to(weight.dtype)
            grad_hidden[chunk] = grad @ weight
            grad_weight += grad.T @ hidden[chunk].to(weight.dtype)
        if grad_bias is not None:
            grad_bias = grad_bias.to(head.weight.dtype)
        return grad_hidden, grad_weight.to(head.weight.dtype), grad_bias, *(None,) * 5


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // len(weight))
    return [slice(start, start + size) for start in range(0, len(hidden), size)]


def _scaled_logits(
    hidden: Tensor, head: Head, temperature: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Logits / temperature [C, V], and their slope over the raw product, [C, 1] ([C, V] with a soft cap)."""
    exact = torch.promote_types(head.weight.dtype, torch.float32)
    precision = torch.get_float32_matmul_precision()
    if dtype == torch.bfloat16:
        torch.set_float32_matmul_precision("medium")  # bfloat16 factors, float32 sums and results
    try:
        bias = None if head.bias is None else head.bias.to(exact)
        logits = F.linear(hidden.to(exact), head.weight.to(exact), bias)
    finally:
        torch.set_float32_matmul_precision(precision)
    slope = (head.scale / temperature.to(exact))[:, None]
    if head.softcap is None:
        return logits.mul_(slope), slope
    capped = torch.tanh(logits.mul_(head.scale / head.softcap))
    return capped * (head.softcap / temperature.to(exact)[:, None]), (1 - capped**2) * slope
