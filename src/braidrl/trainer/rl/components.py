"""The training loss of one micro batch: L = S_rl / N_rl + S_ce / N_ce + S_kl / N_kl (docs/concepts.md).

The normalisers are those of the whole step, over all micro batches and ranks, so that gradients add up. Each
S is summed per environment, so that the share of each environment in the loss can be reported.
"""

import dataclasses

import torch
from torch import Tensor

from braidrl.packing import Normalisers
from braidrl.trainer.model.forward import DeviceMicroBatch, TokenOutputs
from braidrl.trainer.rl.batch import LOSS_WEIGHTS
from braidrl.trainer.rl.loss import Loss, LossInputs, mean, total
from braidrl.trainer.rl.losses.ce import ce_loss
from braidrl.trainer.rl.losses.ref_kl import ref_kl_loss


def component_loss(
    outputs: TokenOutputs, micro: DeviceMicroBatch, rl_loss: Loss, normalisers: Normalisers
) -> tuple[Tensor, dict[str, Tensor]]:
    """This micro batch's share of the step's loss, and its metrics.

    The loss is a scalar, attached to the graph even when every component is empty. A metric is a float[2] of
    sum and denominator: add them up over micro batches and ranks, then call `reduce_metrics`. A component's
    metrics are there for the whole of it and, as `NAME/env/ENV`, for each environment's part of it.
    """
    losses: list[Tensor] = []
    metrics: dict[str, Tensor] = {}
    for name, loss_of in (("rl", rl_loss), ("ce", ce_loss), ("ref_kl", ref_kl_loss)):
        loss, sums = _component(name, loss_of, outputs, micro, getattr(normalisers, name) or 1.0)
        losses.append(loss)
        metrics |= sums
    loss = losses[0] + losses[1] + losses[2]
    metrics["loss"] = total(loss)
    metrics["entropy"] = mean(outputs.entropy)
    return loss, metrics


def _component(
    name: str, loss_of: Loss, outputs: TokenOutputs, micro: DeviceMicroBatch, normaliser: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """A component is the sum of its environments' parts: the loss is called on each of those that have members
    in this row, and once on nothing where none has, so that there is a loss to differentiate, and its keys."""
    envs = micro.members[name]
    present = {env: members for env, members in envs.items() if len(members)}
    parts = {
        env: _part(name, loss_of, outputs, micro, members, normaliser)
        for env, members in (present or {"": micro.targets[:0]}).items()
    }
    losses, sums = zip(*parts.values(), strict=True)
    metrics: dict[str, Tensor] = {}
    for part in sums:
        for key, pair in part.items():
            metrics[key] = metrics[key] + pair if key in metrics else pair
    nothing = {key: torch.zeros_like(pair) for key, pair in metrics.items()}
    for env in envs:
        own = parts[env][1] if env in present else nothing
        metrics |= {f"{key}/env/{env}": pair for key, pair in own.items()}
    return torch.stack(losses).sum(), metrics


def _part(
    name: str,
    loss_of: Loss,
    outputs: TokenOutputs,
    micro: DeviceMicroBatch,
    members: Tensor,
    normaliser: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of some members (i64[M], entries of the row), and its sums."""
    inputs = (_rl_inputs if name == "rl" else _inputs)(name, outputs, micro, members)
    result = loss_of(inputs)
    loss = result.loss / normaliser
    metrics = {key: value if value.ndim else mean(value) for key, value in result.metrics.items()}
    return loss, {f"loss/{name}": total(loss), f"tokens/{name}": total(inputs.loss_mask)} | metrics


def _inputs(name: str, outputs: TokenOutputs, micro: DeviceMicroBatch, members: Tensor) -> LossInputs:
    return LossInputs(
        trainer_logprobs=outputs.logprobs.index_select(0, members),
        inference_logprobs=micro.inference_logprobs[members],
        ref_logprobs=micro.ref_logprobs[members],
        advantages=micro.advantages[members],
        loss_mask=torch.ones_like(members, dtype=torch.bool),
        loss_weights=getattr(micro, f"{name}_weights")[members],
    )


def _rl_inputs(name: str, outputs: TokenOutputs, micro: DeviceMicroBatch, members: Tensor) -> LossInputs:
    """With what only the rl component has; where `old` was not recomputed, it is this very forward."""
    inputs = _inputs(name, outputs, micro, members)
    x = inputs.trainer_logprobs.detach()
    extra = {key: stream[members].to(x.dtype) for key, stream in micro.extra.items()}
    if (weights := extra.pop(LOSS_WEIGHTS, None)) is not None:
        inputs.loss_weights, inputs.loss_mask = weights, weights > 0
    if outputs.head_logprobs is not None and micro.head_logprobs is not None:
        inputs.head_trainer_logprobs = outputs.head_logprobs.index_select(0, members)
        inputs.head_inference_logprobs = micro.head_logprobs[members]
    return dataclasses.replace(
        inputs,
        sequence=micro.sample_index[members],
        entropy=outputs.entropy.index_select(0, members),
        **{"old_logprobs": x} | extra,
    )


def reduce_metrics(sums: dict[str, Tensor]) -> dict[str, float]:
    """Global means from summed float[2] metrics; a zero denominator (a plain sum, or an empty set) becomes
    1."""
    return {key: (pair[0] / (pair[1] if pair[1] else 1)).item() for key, pair in sums.items()}
