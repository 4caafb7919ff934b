"""AdamW, its learning-rate schedule and gradient clipping."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from braidrl.configs.trainer.optim import OptimConfig, SchedulerConfig
from braidrl.trainer.parallel import gathered, rows_of


class OffloadedAdamW(torch.optim.AdamW):
    """AdamW whose moments lie, and whose step runs, in CPU memory; parameters and gradients stay where they are.

    Of a sharded parameter each process steps its own shard. On a CPU the result is that of the fused form, bit by bit.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update one parameter at a time, which needs a copy of one parameter in addition to the moments."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, parameter.grad, group)

    def _step_one(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        place = rows_of(parameter).local
        weights, gradient = place.cpu(), rows_of(gradient).local.cpu()
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state |= {name: torch.zeros_like(weights) for name in ("exp_avg", "exp_avg_sq")}
        beta1, beta2 = group["betas"]
        adamw(
            *([weights], [gradient], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]]),
            **{name: group[name] for name in ("lr", "weight_decay", "eps", "amsgrad", "maximize", "fused")},
            beta1=beta1,
            beta2=beta2,
        )
        place.copy_(weights)  # onto itself where the parameter is on the CPU


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over the trainable parameters, with decoupled decay of matrices alone; its state is float32.

    The fused form, because one pass over memory is five times as fast on a CPU as one pass an operation.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    kind = OffloadedAdamW if config.offload else torch.optim.AdamW
    return kind(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )


def place_state(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, field: str, local: Tensor) -> None:
    """Set a field of a parameter's state to what this process holds of it (a step counter: all of it)."""
    if isinstance(optimizer, OffloadedAdamW):
        placed = local.cpu()
    elif field == "step":  # the fused implementation keeps it on the parameter's device, not sharded
        placed = local.to(parameter.device)
    else:
        placed = torch.empty_like(parameter, requires_grad=False)
        rows_of(placed).local.copy_(local)
    optimizer.state[parameter][field] = placed


def move_state(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Take the optimizer's state to a device, where it is not kept on the CPU anyway."""
    if isinstance(optimizer, OffloadedAdamW):
        return
    for state in optimizer.state.values():
        for field, tensor in state.items():
            state[field] = tensor.to(device)


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
