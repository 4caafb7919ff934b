"""The training loss of one micro batch: L = S_rl / N_rl + S_ce / N_ce + S_kl / N_kl (SPEC section 2).

The normalisers are those of the whole step, over all micro batches and ranks, so that gradients add up.
"""

import torch
from torch import Tensor

from braidrl.packing import Normalisers
from braidrl.trainer.forward import DeviceMicroBatch
from braidrl.trainer.rl.loss import Loss, LossInputs, mean, total
from braidrl.trainer.rl.losses.ce import ce_loss
from braidrl.trainer.rl.losses.ref_kl import ref_kl_loss


def component_loss(
    logprobs: Tensor,
    micro: DeviceMicroBatch,
    rl_loss: Loss,
    normalisers: Normalisers,
    entropy: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """This micro batch's share of the step's loss, and its metrics.

    `logprobs` is float[L], differentiable; `entropy` float[L]. The loss is a scalar, attached to the graph
    even when every component is empty. A metric is a float[2] of sum and denominator, the same keys for every
    micro batch: add them up over micro batches and ranks, then call `reduce_metrics`.
    """
    components = {
        "rl": (rl_loss, micro.rl_weights, normalisers.rl),
        "ce": (ce_loss, micro.ce_weights, normalisers.ce),
        "ref_kl": (ref_kl_loss, micro.ref_kl_weights, normalisers.ref_kl),
    }
    losses: dict[str, Tensor] = {}
    metrics: dict[str, Tensor] = {}
    for name, (loss_of, weights, normaliser) in components.items():
        outputs = loss_of(
            LossInputs(
                trainer_logprobs=logprobs,
                inference_logprobs=micro.inference_logprobs,
                ref_logprobs=micro.ref_logprobs,
                advantages=micro.advantages,
                loss_mask=weights != 0,
                loss_weights=weights,
            )
        )
        losses[name] = outputs.loss / (normaliser or 1.0)
        metrics |= {key: value if value.ndim else mean(value) for key, value in outputs.metrics.items()}
    loss = losses["rl"] + losses["ce"] + losses["ref_kl"]
    metrics |= {f"loss/{name}": total(part) for name, part in losses.items()} | {"loss": total(loss)}
    if entropy is not None:
        metrics["entropy"] = mean(entropy)
    return loss, metrics


def nonfinite_samples(logprobs: Tensor, micro: DeviceMicroBatch) -> list[int]:
    """Indexes of the samples that have an entry whose trainer log-prob is NaN or infinite, ascending. The
    trainer must not step when there are any: the losses only leave such entries out."""
    bad = ~torch.isfinite(logprobs.detach())
    return micro.sample_index[bad].unique().tolist()


def reduce_metrics(sums: dict[str, Tensor]) -> dict[str, float]:
    """Global means from summed float[2] metrics; a zero denominator (a plain sum, or an empty set) becomes
    1."""
    return {key: (pair[0] / (pair[1] if pair[1] else 1)).item() for key, pair in sums.items()}
