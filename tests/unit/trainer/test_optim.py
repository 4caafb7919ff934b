"""AdamW, schedule and clipping compared with their formulas."""

import math

import pytest
import torch
from torch import nn

from braidrl.configs.trainer.optim import OptimConfig, SchedulerConfig
from braidrl.trainer.optim import clip_gradients, learning_rate, make_optimizer, move_state, set_learning_rate


def rates(scheduler: SchedulerConfig, max_steps: int) -> list[float]:
    return [
        learning_rate(OptimConfig(lr=1.0), scheduler, step, max_steps) for step in range(1, max_steps + 1)
    ]


def test_constant_after_warm_up() -> None:
    assert rates(SchedulerConfig(), 3) == [1.0, 1.0, 1.0]
    assert rates(SchedulerConfig(warmup_steps=4), 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_decay_starts_at_the_peak_and_reaches_its_floor_after_decay_steps() -> None:
    assert rates(SchedulerConfig(type="linear", warmup_steps=2, decay_steps=4), 8) == pytest.approx(
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    )
    assert rates(SchedulerConfig(type="linear"), 4) == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert rates(SchedulerConfig(type="linear", decay_steps=2, min_lr_ratio=0.5), 4) == [1.0, 0.75, 0.5, 0.5]


def test_cosine_decay() -> None:
    expected = [0.1 + 0.9 * (1 + math.cos(math.pi * step / 4)) / 2 for step in range(4)]
    assert rates(SchedulerConfig(type="cosine", min_lr_ratio=0.1), 4) == pytest.approx(expected)


def test_a_warm_up_longer_than_the_run_and_a_decay_of_nothing_are_finite() -> None:
    assert rates(SchedulerConfig(type="cosine", warmup_steps=10), 3) == pytest.approx([0.1, 0.2, 0.3])
    assert rates(SchedulerConfig(type="linear", warmup_steps=2), 2) == [0.5, 1.0]


def test_adamw_follows_its_formula_and_decays_matrices_alone() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    config = OptimConfig(lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.5)
    before = {name: parameter.detach().double().clone() for name, parameter in model.named_parameters()}
    moments = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in before.items()}
    optimizer = make_optimizer(model, config)
    for step, rate in enumerate((0.1, 0.05), start=1):
        model.zero_grad()
        model(torch.tensor([1.0, -2.0, 3.0])).square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            gradient = parameter.grad.double()
            first, second = moments[name]
            first.mul_(0.8).add_(gradient, alpha=0.2)
            second.mul_(0.9).add_(gradient**2, alpha=0.1)
            decay = 0.5 if parameter.ndim == 2 else 0.0
            update = first / (1 - 0.8**step) / ((second / (1 - 0.9**step)).sqrt() + 1e-6)
            before[name] = before[name] * (1 - rate * decay) - rate * update
        set_learning_rate(optimizer, rate)
        optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach().double(), before[name], rtol=1e-5, atol=1e-6)


def test_clipping_scales_to_the_global_norm_and_leaves_smaller_gradients_alone() -> None:
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    assert clip_gradients(parameters, max_norm=1.0) == pytest.approx(5.0)
    torch.testing.assert_close(parameters[0].grad, torch.tensor([0.6, 0.0]), rtol=1e-5, atol=0)
    torch.testing.assert_close(parameters[1].grad, torch.tensor([0.8]), rtol=1e-5, atol=0)
    assert clip_gradients(parameters, max_norm=2.0) == pytest.approx(1.0, rel=1e-5)
    torch.testing.assert_close(parameters[1].grad, torch.tensor([0.8]), rtol=1e-5, atol=0)


def test_a_norm_that_is_not_finite_is_reported_and_touches_nothing() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([math.nan, 7.0])
    assert math.isnan(clip_gradients([parameter], max_norm=1.0))
    assert parameter.grad[1] == 7.0


@pytest.mark.parametrize(("offload", "device"), [(False, "meta"), (True, "cpu")])
def test_state_moves_unless_it_lives_on_the_cpu(offload: bool, device: str) -> None:
    model = nn.Linear(2, 3)
    optimizer = make_optimizer(model, OptimConfig(offload=offload))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    move_state(optimizer, torch.device("meta"))  # a second device that exists on every machine
    found = {tensor.device.type for state in optimizer.state.values() for tensor in state.values()}
    assert found == {device}
