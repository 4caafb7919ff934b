"""The sum of components: worked cases directly and with packed rows, splits, empty sets, and non-finite members."""

import numpy as np
import pytest
import torch

from braidrl.configs.loss import IcePopLossConfig, IPOLossConfig
from braidrl.packing import COMPONENTS, Normalisers, Segment, pack
from braidrl.trainer.model.attention import Forest
from braidrl.trainer.model.forward import DeviceMicroBatch, TokenOutputs, to_device
from braidrl.trainer.rl.components import component_loss, reduce_metrics
from braidrl.trainer.rl.loss import Loss
from braidrl.trainer.rl.losses import make_loss
from braidrl.transport.types import TrainingSample

IPO = make_loss(IPOLossConfig())
STREAMS = ("inference_logprobs", "ref_logprobs", "advantages", "rl_weights", "ce_weights", "ref_kl_weights")


def flat(rows: list[list], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([float(value) for row in rows for value in row], dtype=dtype)


def entries(dtype: torch.dtype, **streams: list[list]) -> DeviceMicroBatch:
    """Return a micro batch with the given entries, without a row."""
    sizes = [len(row) for row in streams["rl_weights"]]
    index = torch.arange(sum(sizes))
    members = {name: index[flat(streams[f"{name}_weights"], dtype) != 0] for name in COMPONENTS}
    return DeviceMicroBatch(
        forest=Forest([Segment(0, 1, None)]),
        token_ids=index,
        position_ids=index,
        hidden_index=index,
        targets=index,
        temperature=torch.ones(len(index)),
        sample_index=torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes, dtype=torch.long)),
        members={name: {"env": found} for name, found in members.items()},
        **{name: flat(streams[name], dtype) for name in STREAMS},
    )


def rl_members(given: dict) -> list[list[float]]:
    """Return the weights with those outside the mask set to zero, as in `pack`."""
    pairs = zip(given["rl_weights"], given["loss_mask"], strict=True)
    return [[w * m for w, m in zip(weights, mask, strict=True)] for weights, mask in pairs]


def rl_loss(config: dict) -> Loss:
    return make_loss({"ipo": IPOLossConfig, "icepop": IcePopLossConfig}[config["type"]](**config))


def totals(
    micros: list, logprobs: list[torch.Tensor], normalisers: Normalisers, loss_of: Loss = IPO
) -> tuple[torch.Tensor, dict]:
    loss, sums = torch.zeros(()), {}
    for micro, x in zip(micros, logprobs, strict=True):
        part, metrics = component_loss(TokenOutputs(x, x.detach()), micro, loss_of, normalisers)
        loss = loss + part
        sums = {name: pair + sums.get(name, 0) for name, pair in metrics.items()}
    return loss, reduce_metrics(sums)


def check(case: dict, loss: torch.Tensor, metrics: dict, gradient: torch.Tensor, tolerance: float) -> None:
    expected = case["expected"]
    assert loss.item() == pytest.approx(expected["loss"], rel=tolerance, abs=tolerance)
    for name, part in expected["parts"].items():
        assert metrics[f"loss/{name}"] == pytest.approx(part, rel=tolerance, abs=tolerance)
    wanted = flat(expected["grad_trainer_logprobs"], gradient.dtype)
    torch.testing.assert_close(gradient, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("split", [False, True])
def test_mixed_components(worked_cases, dtype, tolerance, split):
    """In one micro batch, and with each sequence in its own micro batch."""
    for case in worked_cases["mixed_components"]:
        given = case["inputs"] | {"rl_weights": rl_members(case["inputs"])}
        rows = given["trainer_logprobs"]
        x = flat(rows, dtype).requires_grad_()
        parts = [[i] for i in range(len(rows))] if split else [list(range(len(rows)))]
        micros = [
            entries(dtype, **{name: [given[name][i] for i in part] for name in STREAMS}) for part in parts
        ]
        logprobs = x.split([len(row) for row in rows]) if split else [x]
        loss, metrics = totals(
            micros, list(logprobs), Normalisers(*given["scales"]), rl_loss(given["rl_loss"])
        )
        (gradient,) = torch.autograd.grad(loss, x)
        check(case, loss, metrics, gradient, tolerance)


@pytest.mark.parametrize("max_tokens", [1, 12, 1000])
def test_mixed_components_through_packed_rows(worked_cases, max_tokens):
    """As samples with a prompt of one token: normalisers are counted, and entries are packed."""
    for case in worked_cases["mixed_components"]:
        given = case["inputs"]
        samples = [make_sample(index, given) for index in range(len(given["trainer_logprobs"]))]
        counted = Normalisers.of(samples)
        assert [counted.rl, counted.ce, counted.ref_kl] == case["expected"]["local_counts"]
        x = [torch.tensor([0.0, *row], requires_grad=True) for row in given["trainer_logprobs"]]
        micros = [to_device(row, "cpu") for row in pack(samples, max_tokens=max_tokens)]
        padded = torch.nn.utils.rnn.pad_sequence(x, batch_first=True)
        logprobs = [padded[micro.sample_index, micro.targets % 100] for micro in micros]
        loss, metrics = totals(micros, logprobs, Normalisers(*given["scales"]), rl_loss(given["rl_loss"]))
        gradient = torch.autograd.grad(loss, x)
        check(case, loss, metrics, torch.cat([part[1:] for part in gradient]), 1e-5)


def make_sample(index: int, given: dict) -> TrainingSample:
    def stream(name: str) -> np.ndarray:
        return np.array([0, *map(float, given[name][index])], np.float32)

    length = len(given["loss_mask"][index]) + 1
    return TrainingSample(
        token_ids=(np.arange(length) + 100 * index).astype(np.int32),  # token ids encode sample and position
        mask=stream("loss_mask") != 0,
        sampling_logprobs=stream("inference_logprobs"),
        **{name: stream(name) for name in STREAMS if name != "inference_logprobs"},
    )


def nll_entries(
    losses: list[list[float]], weights: list[list[float]]
) -> tuple[DeviceMicroBatch, torch.Tensor]:
    """Return rl members with the given losses: ratio 1 and advantage -loss."""
    zeros = [[0.0] * len(row) for row in losses]
    micro = entries(
        torch.float64,
        inference_logprobs=zeros,
        ref_logprobs=zeros,
        advantages=[[-value for value in row] for row in losses],
        rl_weights=weights,
        ce_weights=zeros,
        ref_kl_weights=zeros,
    )
    return micro, torch.zeros(sum(map(len, losses)), dtype=torch.float64, requires_grad=True)


def test_tokens_count_alike_in_every_micro_batch():
    """The mean of one loss of 4 and three losses of 0 is 1 for every split."""
    for split in ([[4, 0, 0, 0]], [[4], [0, 0, 0]], [[4, 0], [0, 0]]):
        parts = [nll_entries([losses], [[1] * len(losses)]) for losses in split]
        loss, metrics = totals([p[0] for p in parts], [p[1] for p in parts], Normalisers(rl=4))
        assert loss.item() == metrics["loss"] == 1.0
        gradients = torch.autograd.grad(loss, [p[1] for p in parts])
        assert torch.cat(gradients).tolist() == [1.0, 0, 0, 0]


def test_filtered_tokens_leave_the_denominator():
    kept, dropped = [1.0, 1, 1], [0.0, 0, 0]
    micro, x = nll_entries([[2, 2, 2], [7, 7, 7]], [kept, dropped])
    loss, _ = totals([micro], [x], Normalisers(rl=3))
    assert loss.item() == 2.0
    micro, x = nll_entries([[2, 2, 2], [7, 7, 7]], [dropped, dropped])
    loss, metrics = totals([micro], [x], Normalisers())
    loss.backward()
    assert loss.item() == 0 and x.grad.tolist() == [0.0] * 6
    assert all(np.isfinite(value) for value in metrics.values())


def test_a_fractional_denominator_is_kept():
    micro, x = nll_entries([[3]], [[0.25]])
    assert totals([micro], [x], Normalisers(rl=0.25))[0].item() == 3.0


def test_no_entries_is_an_attached_zero():
    micro, _ = nll_entries([], [])
    x = torch.zeros(4, requires_grad=True)
    nothing = TokenOutputs(x[micro.hidden_index], torch.zeros(0))
    loss, metrics = component_loss(nothing, micro, IPO, Normalisers(2, 3, 4))
    loss.backward()
    assert loss.item() == 0 and x.grad.tolist() == [0.0] * 4
    full = nll_entries([[1]], [[1]])
    one = TokenOutputs(full[1], torch.ones(1))
    assert metrics.keys() == component_loss(one, full[0], IPO, Normalisers(1))[1].keys()


def test_nonfinite_trainer_logprobs_are_counted():
    micro, _ = nll_entries([[1, 1], [1], [1, 1]], [[1, 1], [1], [1, 1]])
    x = torch.tensor([0.0, 0, torch.nan, 0, -torch.inf], dtype=torch.float64, requires_grad=True)
    loss, metrics = totals([micro], [x], Normalisers(rl=5))
    assert loss.item() == pytest.approx(3 / 5)
    assert metrics["nonfinite_tokens"] == 2


def test_a_reference_score_reaches_the_gradient():
    gradients = []
    for ref in (-1.0, -1.5):
        micro = entries(
            torch.float64,
            inference_logprobs=[[-1.2]],
            ref_logprobs=[[ref]],
            advantages=[[0.0]],
            rl_weights=[[0.0]],
            ce_weights=[[0.0]],
            ref_kl_weights=[[1.0]],
        )
        x = torch.tensor([-1.2], dtype=torch.float64, requires_grad=True)
        component_loss(TokenOutputs(x, x.detach()), micro, IPO, Normalisers(ref_kl=1))[0].backward()
        gradients.append(x.grad.item())
    assert gradients == pytest.approx([-0.2, 0.3])
