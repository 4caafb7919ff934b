"""The exact trainer forward: log-probs and entropy of a packed row, only at its loss entries.

The full-vocabulary logits of a row never exist: the head runs over chunks of entries, and its backward pass
recomputes each chunk once, for the gradients of all that it returned.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers import PreTrainedModel

from braidrl.packing import MicroBatch
from braidrl.trainer.model.attention import Forest

CHUNK_ELEMENTS = 1 << 23
"""Logits that exist at a time."""

LEAST_LOGPROB = -1e4
"""Lower bound of log p in p log p of the entropy. Its exp is 0 in every dtype, and 0 times it is 0 (for -inf, NaN)."""

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
    extra: dict[str, Tensor] = field(default_factory=dict)
    head_ids: Tensor | None = None
    head_logprobs: Tensor | None = None


def to_device(micro: MicroBatch, device: torch.device | str) -> DeviceMicroBatch:
    """Copy a packed row to a device."""
    streams = {name: torch.from_numpy(getattr(micro, name)).to(device) for name in STREAMS}
    members = {
        component: {env: torch.from_numpy(index).to(device) for env, index in envs.items()}
        for component, envs in micro.members.items()
    }
    extra = {name: torch.from_numpy(stream).to(device) for name, stream in micro.extra.items()}
    head_ids, head_logprobs = (
        None if head is None else torch.from_numpy(head).to(device)
        for head in (micro.head_ids, micro.head_logprobs)
    )
    return DeviceMicroBatch(
        forest=Forest(micro.segments),
        members=members,
        extra=extra,
        head_ids=head_ids,
        head_logprobs=head_logprobs,
        **streams,
    )


class TokenOutputs(NamedTuple):
    """Differentiable outputs at the L loss entries of a row, float32 (float64 for a float64 model)."""

    logprobs: Tensor
    """float[L]: log-prob of the target at the entry's temperature."""
    entropy: Tensor
    """float[L] in nats: of the distribution, over the full vocabulary, that the log-prob is from."""
    head_logprobs: Tensor | None = None
    """float[L, K]: log-probs of the entry's candidates in that distribution, 0 at pads; None without any."""


@dataclass(frozen=True)
class LMHead:
    """LM head of a model, from last hidden states to logits: `softcap * tanh(scale * (h W + b) / softcap)`."""

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
    return head_logprobs(rows, LMHead.of(model), micro.targets, micro.temperature, dtype, micro.head_ids)


def head_logprobs(
    hidden: Tensor,
    head: LMHead,
    targets: Tensor,
    temperature: Tensor,
    dtype: torch.dtype = torch.float32,
    candidates: Tensor | None = None,
) -> TokenOutputs:
    """Log-softmax of logits / temperature at `targets` and at `candidates`, and its entropy.

    hidden float[L, H], targets i64[L], temperature float[L] > 0, candidates i64[L, K] (-1 pads, an id may be
    repeated). All is differentiable in hidden states, weight and bias. Logits and softmax are float32
    (float64 for a float64 head); `dtype` bfloat16 rounds only the factors of the matrix products.
    """
    picks = targets[:, None]
    if candidates is not None:
        picks = torch.cat([picks, candidates.clamp_min(0)], dim=1)
    logprobs, entropy = _HeadLogprobs.apply(
        hidden, head.weight, head.bias, head.scale, head.softcap, picks, temperature, dtype
    )
    if candidates is None:
        return TokenOutputs(logprobs[:, 0], entropy[:, 0])
    return TokenOutputs(logprobs[:, 0], entropy[:, 0], logprobs[:, 1:].masked_fill(candidates < 0, 0))


class _HeadLogprobs(torch.autograd.Function):
    """Log-probs at `picks` i64[L, P], float[L, P], and entropies, float[L, 1]; chunks of entries at a time.

    The backward pass recomputes a chunk's logits and takes their log-sum-exp from the forward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        scale: float,
        softcap: float | None,
        picks: Tensor,
        temperature: Tensor,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        head = LMHead(weight, bias, scale, softcap)
        exact = torch.promote_types(weight.dtype, torch.float32)
        logprobs = hidden.new_empty(picks.shape, dtype=exact)
        entropy, lse = (hidden.new_empty((len(hidden), 1), dtype=exact) for _ in range(2))
        for chunk in _chunks(hidden, weight):
            logits, _ = _scaled_logits(hidden[chunk], head, temperature[chunk], dtype)
            top = logits.amax(-1, keepdim=True)
            exps = logits.sub_(top).exp()
            total = exps.sum(-1, keepdim=True)
            log_total = total.log()
            logprobs[chunk] = logits.gather(-1, picks[chunk]) - log_total
            logits.clamp_min_(LEAST_LOGPROB)
            entropy[chunk] = log_total - torch.linalg.vecdot(exps, logits)[:, None] / total
            lse[chunk] = log_total + top
        ctx.save_for_backward(hidden, weight, bias, picks, temperature, lse, entropy)
        ctx.scale, ctx.softcap, ctx.dtype = scale, softcap, dtype
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, picks, temperature, lse, entropy = ctx.saved_tensors
        head = LMHead(weight, bias, ctx.scale, ctx.softcap)
        if grad_logprobs is None:
            grad_logprobs = lse.new_zeros(picks.shape)
        grad_hidden = torch.empty_like(hidden)
        grad_weight, grad_bias = (
            torch.zeros_like(part, dtype=lse.dtype) if wanted and part is not None else None
            for part, wanted in zip((weight, bias), ctx.needs_input_grad[1:3])  # a frozen head wants none
        )
        weight = weight.to(torch.bfloat16 if ctx.dtype == torch.bfloat16 else lse.dtype)
        for chunk in _chunks(hidden, weight):
            logits, slope = _scaled_logits(hidden[chunk], head, temperature[chunk], ctx.dtype)
            grad = _logit_gradient(
                logits.sub_(lse[chunk]),
                picks[chunk],
                grad_logprobs[chunk],
                entropy[chunk],
                None if grad_entropy is None else grad_entropy[chunk],
            )
            grad.mul_(slope)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            grad, rows = grad.to(weight.dtype), hidden[chunk].to(weight.dtype)
            grad_hidden[chunk] = grad @ weight
            if grad_weight is None:
                continue
            if grad.dtype == grad_weight.dtype:
                grad_weight.addmm_(grad.T, rows)  # in place: the product is as large as the weight
            else:
                grad_weight += grad.T @ rows
        of_head = (None if part is None else part.to(head.weight.dtype) for part in (grad_weight, grad_bias))
        return grad_hidden, *of_head, *(None,) * 5


def _logit_gradient(
    log_p: Tensor, picks: Tensor, grad_picks: Tensor, entropy: Tensor, grad_entropy: Tensor | None
) -> Tensor:
    """The gradient in a chunk's scaled logits z, float[C, V], made in place of their log-softmax `log_p`.

    d log p_a / d z_v = [v = a] - p_v and d H / d z_v = -p_v (log p_v + H); picks and `grad_picks` [C, P],
    entropy H and `grad_entropy` [C, 1].
    """
    factor = -grad_picks.sum(-1, keepdim=True)
    if grad_entropy is None:
        grad = log_p.exp_().mul_(factor)
    else:
        p = log_p.exp()
        log_p.clamp_min_(LEAST_LOGPROB)
        grad = log_p.mul_(-grad_entropy).add_(factor - grad_entropy * entropy).mul_(p)
    return grad.scatter_add_(-1, picks, grad_picks)


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // len(weight))
    return [slice(start, start + size) for start in range(0, len(hidden), size)]


def _scaled_logits(
    hidden: Tensor, head: LMHead, temperature: Tensor, dtype: torch.dtype
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
