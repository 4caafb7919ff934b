"""The worked example of docs/concepts.md: its tables equal the results of the algorithm, packing and loss."""

import math
from typing import NamedTuple

import pytest
import torch
from verifiers.v1 import Episode

from braidrl.configs.algorithm import EchoConfig
from braidrl.configs.loss import IPOLossConfig
from braidrl.orchestrator.train.algo import make_algorithm
from braidrl.orchestrator.train.samples import drop_zero_signal, flatten_trace
from braidrl.packing import MicroBatch, Normalisers, pack
from braidrl.trainer.model.forward import TokenOutputs, to_device
from braidrl.trainer.rl.components import component_loss, reduce_metrics
from braidrl.trainer.rl.losses import make_loss
from braidrl.transport.types import TrainingSample
from tests.support.episodes import episode, trace
from tests.support.paths import DOCS

TEXT = (DOCS / "concepts.md").read_text()
COLUMNS = ("mu", "pi", "advantage", "weight", "term", "pull")
CALLS_A_TOOL = [("user", 2), ("assistant", 2), ("tool", 2), ("assistant", 1)]


def table(heading: str) -> list[list[str]]:
    """Return the cells of each row of the table whose first column is `heading`."""
    _, *rows = TEXT.split(f"| {heading} |")[1].split("\n\n")[0].split("\n")
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]


TOKENS = {row[0]: row[1:] for row in table("token")}


class Computed(NamedTuple):
    row: MicroBatch
    pulls: list[float]
    metrics: dict[str, float]


def numbers(name: str) -> list[float | None]:
    """Return a column of the first table."""
    place = 1 + COLUMNS.index(name)
    return [float(cells[place]) if cells[place] else None for cells in TOKENS.values()]


def played(episodes: dict[str, Episode]) -> list[Episode]:
    """Set the log-probs of sampled tokens to those of the table, and return the episodes."""
    for letter, item in episodes.items():
        rows = [cells for token, cells in TOKENS.items() if token.startswith(letter)]
        mu = iter([math.log(float(cells[1])) for cells in rows if cells[0] == "rl"])
        for node in item.traces[0].nodes:
            node.logprobs = [next(mu) for _ in range(sum(node.mask))]
    return list(episodes.values())


async def shipped(tool_tokens: int = 2) -> list[TrainingSample]:
    """Return the training samples of the two episodes."""
    roles = [(role, tool_tokens if role == "tool" else count) for role, count in CALLS_A_TOOL]
    episodes = played({"A": episode(trace(1.0, roles)), "B": episode(trace(0.0, CALLS_A_TOOL[:2]))})
    algorithm = make_algorithm(EchoConfig(), None)
    for item in episodes:
        await algorithm.finalize_episode(item)
    await algorithm.score_group(episodes)
    samples = (
        sample
        for item in episodes
        for sample in flatten_trace(item.traces[0], seq_len=512, env="shell").samples
    )
    return [kept for kept in map(drop_zero_signal, samples) if kept is not None]


def computed(samples: list[TrainingSample], probabilities: list[float]) -> Computed:
    """Return packed row, pulls and metrics if the trainer's probabilities are `probabilities`."""
    (row,) = pack(samples, max_tokens=512)
    x = torch.tensor(probabilities).log().requires_grad_()
    loss, sums = component_loss(
        TokenOutputs(x, x.detach()),
        to_device(row, "cpu"),
        make_loss(IPOLossConfig()),
        Normalisers.of(samples),
    )
    loss.backward()
    return Computed(row, (-x.grad).tolist(), reduce_metrics(sums))


async def test_every_number_of_the_tokens_is_the_codes() -> None:
    row, pulls, _ = computed(await shipped(), numbers("pi"))
    assert len(row.segments) > 1 and row.segments[0].length == 3  # prompts and first token are stored once
    components = [cells[0] for cells in TOKENS.values()]
    for index, (component, advantage, weight) in enumerate(
        zip(components, numbers("advantage"), numbers("weight"), strict=True)
    ):
        stream = row.rl_weights if component == "rl" else row.ce_weights
        assert stream[index] == pytest.approx(weight)
        assert row.advantages[index] == (advantage or 0)
    assert pulls == pytest.approx(numbers("pull"), abs=5e-4)


async def test_every_metric_is_the_codes_and_the_sum_of_its_terms() -> None:
    metrics = computed(await shipped(), numbers("pi")).metrics
    shown = {row[0].strip("`"): float(row[2]) for row in table("metric")}
    assert len(shown) > 5
    for name, value in shown.items():
        assert metrics[name] == pytest.approx(value, abs=5e-4), name
    terms, components = numbers("term"), [cells[0] for cells in TOKENS.values()]
    for name in ("rl", "ce"):
        own = [term for term, component in zip(terms, components, strict=True) if component == name]
        assert sum(own) / len(own) == pytest.approx(metrics[f"loss/{name}"], abs=1e-3)


async def test_more_tool_output_leaves_the_pulls_of_the_reward_alone() -> None:
    pi = numbers("pi")
    few = computed(await shipped(), pi).pulls
    many = computed(await shipped(200), [*pi[:2], *[0.25] * 200, *pi[4:]]).pulls
    assert [*many[:2], *many[202:]] == pytest.approx([*few[:2], *few[4:]])
    assert many[2] == pytest.approx(0.1 / 200)
