"""AdamW, its learning-rate schedule and gradient clipping."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from braidrl.configs.optim import OptimConfig, SchedulerConfig
from braidrl.trainer.parallel import gathered


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over the trainable parameters, with decoupled decay of matrices alone; its state is float32.

    The fused form, because one pass over memory is five times as fast on a CPU as one pass an operation.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )


def learning_rate(optim: OptimConfig, scheduler: SchedulerConfig, step: int, max_steps: int) -> float:
    """Learning rate of step `step` (1-based); a pure function, so that a resumed run needs no state.

    Warm-up rises linearly and reaches the peak at its last step. The decay starts from the peak at the step
    after and arrives at `min_lr_ratio` after `decay_steps` steps, so that by default no step has rate 0.
    """
    if step <= scheduler.warmup_steps:
        return optim.lr * step / scheduler.warmup_steps
    decay_steps = scheduler.decay_steps or max(1, max_steps - scheduler.warmup_steps)
    progress = min(1.0, (step - 1 - scheduler.warmup_steps) / decay_steps)
    share = {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": (1.0 + math.cos(math.pi * progress)) / 2,
    }[scheduler.type]
    return optim.lr * (scheduler.min_lr_ratio + (1.0 - scheduler.min_lr_ratio) * share)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = value


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Scale gradients down to the global L2 norm `max_norm`, over all shards; returns the norm before.

    A norm that is not finite is returned and the gradients are left alone: the caller must not step.
    """
    parameters = list(parameters)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = gathered(torch.nn.utils.get_total_norm(gradients))
    if torch.isfinite(norm):
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm.item()
