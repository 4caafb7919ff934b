"""Advantage normalisation over the group or the batch: worked cases and invariances."""

import gc
import logging

import numpy as np
import pytest
from verifiers.v1 import Trace

from braidrl.configs.algorithm import (
    BaseAlgorithmConfig,
    EchoConfig,
    GRPOConfig,
)
from braidrl.orchestrator.train.algo import make_algorithm
from braidrl.orchestrator.train.algo.length_penalty import length_penalty
from braidrl.orchestrator.train.algo.routing import eligible_traces, groups_by_id
from braidrl.orchestrator.train.rescore import score_batch
from tests.support.credit import EXACT, conversation
from tests.support.episodes import advantages_of, episode, trace


@pytest.mark.parametrize("kind", [GRPOConfig, EchoConfig])
async def test_advantage_norm_vectors(worked_cases, kind) -> None:
    """Prompts are groups, scored separately when complete, then as one batch."""
    seen = 0
    for case in worked_cases["advantage_norm"]:
        inputs, expected = case["inputs"], case["expected"]
        algorithm = make_algorithm(kind(advantage_norm=inputs["mode"]))
        played = [
            episode(trace(reward), group=prompt)
            for reward, prompt in zip(inputs["rewards"], inputs["prompt_ids"], strict=True)
        ]
        if expected.get("raises"):
            with pytest.raises(ValueError, match="groups of equal size, but these have 1, 2 episodes"):
                await algorithm.score_group(played)
        else:
            await score_batch(algorithm, *groups_by_id(played))
            assert advantages_of(played) == pytest.approx(expected["advantages"], **EXACT)
            zeros = sum(value == 0 for value in expected["advantages"])
            assert algorithm.metrics()["adv_zero_ratio"] == zeros / len(played)
        seen += 1
    assert seen == 26


NORMS = ["group_mean", "group_zscore", "batch_zscore", "batch_mean", "none"]


async def batch_of(config: BaseAlgorithmConfig, *groups: list[Trace]) -> list[list[float | None]]:
    """Score groups of single-trace episodes as one batch, and return the advantages of each group."""
    played = [[episode(item, group=f"g{n}") for item in group] for n, group in enumerate(groups)]
    await score_batch(make_algorithm(config), *played)
    return [advantages_of(group) for group in played]


@pytest.mark.parametrize("norm", NORMS)
async def test_the_length_penalty_comes_before_the_normalisation_and_is_its_groups(norm) -> None:
    groups = [
        [conversation(1.0, 5, 2, 1), conversation(0.0, 9, 2, 2), conversation(1.0, 20, 3, 3)],
        [conversation(0.0, 5, 2, 1), conversation(0.0, 50, 2, 1), conversation(0.5, 8, 2, 1)],
    ]
    plain = GRPOConfig.model_validate({"length_penalty": {}})
    shaped = [
        np.array([item.reward for item in group])
        - length_penalty(group, np.array([item.reward for item in group]), plain.length_penalty)
        for group in groups
    ]
    kind, _, statistic = norm.partition("_")
    compared = [np.concatenate(shaped)] if kind == "batch" else shaped
    expected = [values - values.mean() if statistic else values for values in compared]
    if statistic == "zscore":
        expected = [values / (values.std(ddof=1) + 1e-6) for values in expected]
    config = plain.model_copy(update={"advantage_norm": norm})
    found = await batch_of(config, *groups)
    assert np.concatenate(found) == pytest.approx(np.concatenate(expected), **EXACT)


async def test_batch_modes_forget_a_trace_when_it_is_deleted() -> None:
    algorithm = make_algorithm(GRPOConfig(advantage_norm="batch_mean"))
    played = [episode(trace(reward)) for reward in (1.0, 0.0)]
    await algorithm.score_group(played)
    assert list(algorithm.shaped.values()) == [1.0, 0.0]
    assert advantages_of(played) == [None, None]
    del played
    gc.collect()
    assert algorithm.shaped == {}


@pytest.mark.parametrize("norm", NORMS)
async def test_sets_without_spread_are_exactly_zero(norm) -> None:
    """Subtracting the rounded mean of seven rewards of 0.1 would give 1e-17."""
    config = GRPOConfig(advantage_norm=norm)
    found = await batch_of(config, [trace(0.1) for _ in range(4)], [trace(0.1) for _ in range(3)])
    assert found == ([[0.1] * 4, [0.1] * 3] if norm == "none" else [[0.0] * 4, [0.0] * 3])
    (alone,) = await batch_of(config, [trace(3.0)])
    assert alone == ([3.0] if norm == "none" else [0.0])


@pytest.mark.parametrize("norm", ["group_zscore", "batch_zscore"])
async def test_two_passes_see_a_small_spread_on_a_large_mean(norm) -> None:
    """The one-pass formula E[x^2] - mean^2 would lose the variance of 2/3 to rounding."""
    rewards = [1e9, 1e9 + 1.0, 1e9 + 2.0]
    assert abs(np.mean(np.square(rewards)) - np.mean(rewards) ** 2 - 2 / 3) > 0.5
    (found,) = await batch_of(GRPOConfig(advantage_norm=norm), [trace(reward) for reward in rewards])
    assert found == pytest.approx(np.array([-1.0, 0.0, 1.0]) / (1 + 1e-6), **EXACT)


@pytest.mark.parametrize("norm", NORMS)
async def test_a_failed_sibling_is_a_member_but_excluded_from_the_mean(norm) -> None:
    """Groups of three with one failed episode are groups of equal size."""
    config = GRPOConfig(advantage_norm=norm)
    whole = await batch_of(config, [trace(1.0), trace(0.0)], [trace(0.5), trace(0.25)])
    failed = [trace(9.0, ok=False), trace(float("nan"))]
    groups = [[trace(1.0), failed[0], trace(0.0)], [failed[1], trace(0.5), trace(0.25)]]
    found = await batch_of(config, *groups)
    assert [[value for value in group if value is not None] for group in found] == whole
    algorithm = make_algorithm(config)
    together = [episode(item, group=str(n)) for n, group in enumerate(groups) for item in group]
    await algorithm.score_group(together)
    await algorithm.score_batch([played for played in together if eligible_traces([played])])
    assert algorithm.metrics()["excluded/error"] == 1.0


async def test_batch_modes_need_no_siblings(caplog) -> None:
    config = GRPOConfig(advantage_norm="batch_mean")
    with caplog.at_level(logging.WARNING):
        assert await batch_of(config, [trace(1.0)], [trace(0.0)]) == [[0.5], [-0.5]]
    assert not caplog.messages
    assert not config.needs_siblings


async def test_prompt_weights_are_of_the_group_in_batch_modes_too() -> None:
    config = GRPOConfig(advantage_norm="batch_mean", loss_aggregation="prompt")
    groups = [[conversation(1.0, 3, 1, 1), conversation(0.0, 5, 1, 1)], [conversation(1.0, 2, 1, 1)]]
    await batch_of(config, *groups)
    weights = [
        {w for n in item.nodes for w in (n.loss_weights or {}).get("rl", [])} - {0.0}
        for group in groups
        for item in group
    ]
    assert weights == [{1 / 8}, {1 / 8}, {1 / 2}]
