"""Worked credit of every comparing algorithm, through its public class on real episodes."""

import gc
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from verifiers.v1 import Trace
from verifiers.v1.semantic import ParentLink

from braidrl.configs.algorithm import (
    BaseAlgorithmConfig,
    EchoConfig,
    GRPOConfig,
    HierarchicalGRPOConfig,
    MaxRLConfig,
    RAEConfig,
)
from braidrl.configs.length_penalty import LinearPenaltyConfig
from braidrl.orchestrator.train.algo import make_algorithm
from braidrl.orchestrator.train.algo.advantage import weighted_advantages
from braidrl.orchestrator.train.algo.length_penalty import (
    call_totals,
    length_penalty,
    linear_penalty,
    subagent_calls,
)
from braidrl.orchestrator.train.algo.routing import eligible_traces, groups_by_id
from braidrl.orchestrator.train.replay import score_batch
from braidrl.orchestrator.train.samples import drop_zero_signal, flatten_trace
from tests.unit.episodes import advantages_of, episode, node, trace

WEIGHTS = ("num_output_tokens_weight", "num_input_tokens_weight", "num_turns_weight")
EXACT = {"abs": 1e-14, "rel": 1e-13}


async def credited(config: BaseAlgorithmConfig, traces: Sequence[Trace]) -> list[float | None]:
    """The advantage of each trace, one episode each, as one group that is a batch."""
    episodes = [episode(item) for item in traces]
    algorithm = make_algorithm(config)
    await algorithm.score_group(episodes)
    await algorithm.score_batch(episodes)
    return advantages_of(episodes)


def penalty_of(inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {name: inputs[name] for name in WEIGHTS} | more


def conversation(reward: float, output: int, context: int, turns: int) -> Trace:
    """A trace of so many sampled tokens, other tokens, and turns."""
    roles = [("user", context), *[("assistant", 0)] * (turns - 1), ("assistant", output)]
    return trace(reward, roles)


async def test_linear_length_penalty_vectors(vectors) -> None:
    seen = 0
    for case in vectors["grpo_length_penalty_linear"]["cases"]:
        inputs, expected = case["inputs"], case["expected"]
        counts = [inputs[name] for name in ("output_tokens", "input_tokens", "turns")]
        penalty = LinearPenaltyConfig(**penalty_of(inputs))
        shaped = np.array(inputs["rewards"]) - linear_penalty(inputs["rewards"], *counts, penalty)
        assert shaped == pytest.approx(expected["shaped_rewards"], **EXACT)
        if not any(counts[0]):
            continue  # traces without a sampled token are not compared: the formula above is all there is
        seen += 1
        traces = [conversation(reward, *count) for reward, *count in zip(inputs["rewards"], *counts)]
        config = GRPOConfig(length_penalty=penalty)
        assert await credited(config, traces) == pytest.approx(expected["advantages"], **EXACT)
    assert seen == 6


class LongTrace(Trace):
    """A trace whose harness counts turns by itself."""

    turns: int

    @property
    def num_turns(self) -> int:
        return self.turns


def calls(reward: float, rollout: dict[str, Any]) -> Trace:
    """One branch a call, with its semantic edges."""
    plain = trace(reward)
    built = LongTrace(turns=rollout["turns"], **{name: getattr(plain, name) for name in ("task", "agent")})
    built.rewards, built.is_completed, built.ok = plain.rewards, True, True
    places: dict[str, int] = {}
    for call in rollout["calls"]:
        built.nodes.append(node("user", call["new_input"], None))
        built.nodes.append(node("assistant", call["output"], len(built.nodes) - 1))
        places[call["id"]] = len(built.nodes) - 1
    for source, target, kind in rollout["edges"]:
        built.nodes[places[target]].semantic_parents.append(ParentLink(node=places[source], type=kind))
    return built


async def test_subagent_length_penalty_vectors(vectors) -> None:
    for case in vectors["grpo_length_penalty_linear_subagent"]["cases"]:
        inputs, expected = case["inputs"], case["expected"]
        weight = inputs["subagent_token_weight"]
        traces = [calls(reward, rollout) for reward, rollout in zip(inputs["rewards"], inputs["rollouts"])]
        for item, rollout, members in zip(traces, inputs["rollouts"], expected["is_subagent"]):
            found = {
                call["id"]: 2 * index + 1 in subagent_calls(item)
                for index, call in enumerate(rollout["calls"])
            }
            assert found == members
        totals = [call_totals(item, weight) for item in traces]
        assert [output for output, _ in totals] == pytest.approx(expected["output_totals"])
        assert [context for _, context in totals] == pytest.approx(expected["input_totals"])
        penalty = penalty_of(inputs, type="linear-subagent", subagent_token_weight=weight)
        config = GRPOConfig.model_validate({"length_penalty": penalty})
        rewards = np.array(inputs["rewards"])
        shaped = rewards - length_penalty(traces, rewards, config.length_penalty)
        assert shaped == pytest.approx(expected["shaped_rewards"], **EXACT)
        assert await credited(config, traces) == pytest.approx(expected["advantages"], **EXACT)


async def test_a_negative_mean_does_not_reward_length() -> None:
    config = GRPOConfig.model_validate({"length_penalty": {}})
    assert await credited(config, [conversation(-1.0, 5, 1, 1), conversation(-1.0, 50, 1, 1)]) == [0.0, 0.0]


async def test_length_weighted_baseline_vectors(vectors) -> None:
    config = GRPOConfig(length_weighted_baseline=True)
    for case in vectors["grpo_length_weighted_baseline"]["cases"]:
        rewards, tokens = case["inputs"]["shaped_rewards"], case["inputs"]["trainable_tokens"]
        expected = case["expected"]["advantages"]
        assert weighted_advantages(rewards, tokens) == pytest.approx(expected, **EXACT)
        if all(tokens):
            traces = [conversation(reward, count, 1, 1) for reward, count in zip(rewards, tokens)]
            found = await credited(config, traces)
            assert found == pytest.approx(expected, **EXACT)
            assert np.dot(tokens, found) == pytest.approx(0, abs=1e-11)
    assert weighted_advantages([1.0, 0.0], [0, 0]).tolist() == [0.5, -0.5]


@pytest.mark.parametrize("kind", [GRPOConfig, EchoConfig])
async def test_advantage_norm_vectors(vectors, kind) -> None:
    """Prompts are groups, scored one by one as they get complete, then as one batch."""
    seen = 0
    for case in vectors["advantage_norm"]["cases"]:
        inputs, expected = case["inputs"], case["expected"]
        algorithm = make_algorithm(kind(advantage_norm=inputs["mode"]))
        played = [
            episode(trace(reward), group=prompt)
            for reward, prompt in zip(inputs["rewards"], inputs["prompt_ids"], strict=True)
        ]
        if expected.get("raises"):
            with pytest.raises(ValueError, match="groups of equal size, and these have 1, 2 episodes"):
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
    """The advantages of each group's traces, one episode each, after the batch of them all."""
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


async def test_batch_modes_remember_of_a_trace_no_more_than_its_life() -> None:
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
    """0.1 seven times: the rounding of the mean would leave 1e-17."""
    config = GRPOConfig(advantage_norm=norm)
    found = await batch_of(config, [trace(0.1) for _ in range(4)], [trace(0.1) for _ in range(3)])
    assert found == ([[0.1] * 4, [0.1] * 3] if norm == "none" else [[0.0] * 4, [0.0] * 3])
    (alone,) = await batch_of(config, [trace(3.0)])
    assert alone == ([3.0] if norm == "none" else [0.0])


@pytest.mark.parametrize("norm", ["group_zscore", "batch_zscore"])
async def test_two_passes_see_a_small_spread_on_a_large_mean(norm) -> None:
    """E[x^2] - mean^2, in one pass, has lost the spread of 2/3 altogether."""
    rewards = [1e9, 1e9 + 1.0, 1e9 + 2.0]
    assert abs(np.mean(np.square(rewards)) - np.mean(rewards) ** 2 - 2 / 3) > 0.5
    (found,) = await batch_of(GRPOConfig(advantage_norm=norm), [trace(reward) for reward in rewards])
    assert found == pytest.approx(np.array([-1.0, 0.0, 1.0]) / (1 + 1e-6), **EXACT)


@pytest.mark.parametrize("norm", NORMS)
async def test_a_failed_sibling_is_a_member_that_counts_in_no_mean(norm) -> None:
    """Groups of three of which one failed are groups of equal size."""
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


async def test_max_rl_vectors(vectors) -> None:
    for case in vectors["max_rl_advantage"]["cases"]:
        found = await credited(MaxRLConfig(), [trace(reward) for reward in case["inputs"]["rewards"]])
        assert found == pytest.approx(case["expected"]["advantages"], **EXACT)


@pytest.mark.parametrize("rewards", [[-1.0, 1.0], [-1.0, -1.0, -1.0, 1.0]])
async def test_max_rl_without_a_positive_mean_is_zero_and_says_so(rewards, caplog) -> None:
    algorithm = make_algorithm(MaxRLConfig())
    episodes = [episode(trace(reward)) for reward in rewards]
    with caplog.at_level(logging.WARNING):
        await algorithm.score_group(episodes)
        await algorithm.score_group(episodes)
    assert advantages_of(episodes) == [0.0] * len(rewards)
    assert len([line for line in caplog.messages if "not negative" in line]) == 1
    assert algorithm.metrics()["zero_mean_groups"] == 2


async def test_rae_vectors(vectors) -> None:
    for case in vectors["rae_advantage"]["cases"]:
        algorithm = make_algorithm(RAEConfig(decay=case["inputs"]["decay"]))
        for group, expected in zip(case["inputs"]["groups"], case["expected"]["advantages"], strict=True):
            played = [episode(*(trace(reward, agent=agent) for agent, reward in group))]
            await algorithm.score_batch(played)
            assert advantages_of(played) == pytest.approx(expected, **EXACT)
        baselines = algorithm.state_dict()["baselines"]
        assert baselines == pytest.approx(case["expected"]["final_baselines"], **EXACT)


async def test_rae_goes_on_where_its_state_ends() -> None:
    games = [[episode(trace(r, agent="p0"), trace(-r, agent="p1"))] for r in (1.0, -1.0, 1.0, 1.0)]
    whole, first, second = (make_algorithm(RAEConfig(decay=0.5)) for _ in range(3))
    for game in games:
        await whole.score_batch(game)
    expected = [advantages_of(game) for game in games]
    for game in games[:2]:
        await first.score_batch(game)
    second.load_state_dict(first.state_dict())
    for game in games[2:]:
        await second.score_batch(game)
    assert [advantages_of(game) for game in games] == expected
    assert second.state_dict() == whole.state_dict()
    assert second.metrics()["baseline/p0"] == whole.state_dict()["baselines"]["p0"]


async def test_hierarchical_vectors(vectors) -> None:
    for case in vectors["hierarchical_grpo_advantage"]["cases"]:
        episodes, order = {}, []
        for item in case["inputs"]["traces"]:
            played = episodes.setdefault(item["episode"], episode(trace()).model_copy(update={"traces": []}))
            played.traces.append(trace(item["reward"], agent=item["agent"]))
            order.append(played.traces[-1])
        for name, played in episodes.items():
            played.id = name
        config = HierarchicalGRPOConfig(episode_agents=case["inputs"]["episode_agents"])
        await make_algorithm(config).score_group(list(episodes.values()))
        found = [item.nodes[1].advantages[0] for item in order]
        assert found == pytest.approx(case["expected"]["advantages"], **EXACT)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GRPOConfig(), 0.0),
        (EchoConfig(), 0.0),
        (MaxRLConfig(), 0.0),
        (RAEConfig(), 3.0),
        (HierarchicalGRPOConfig(), 0.0),
    ],
)
async def test_a_group_of_one(config, expected, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        assert await credited(config, [trace(3.0)]) == [expected]
    assert ("group_size" in caplog.text) == (expected == 0.0)


ALL = [GRPOConfig(), EchoConfig(), MaxRLConfig(), RAEConfig(), HierarchicalGRPOConfig()]


@pytest.mark.parametrize("config", ALL, ids=lambda config: config.type)
async def test_failed_siblings_and_broken_rewards_stay_out(config) -> None:
    good = [trace(1.0), trace(0.5)]
    alone = await credited(config, [item.model_copy(deep=True) for item in good])
    bad = [trace(float("nan")), trace(None), trace(9.0, ok=False), trace(9.0, trainable=False)]
    found = await credited(config, [bad[0], good[0], bad[1], bad[2], good[1], bad[3]])
    assert [value for value in found if value is not None] == alone
    assert await credited(config, bad) == [None] * len(bad)


@pytest.mark.parametrize("config", [item for item in ALL if item.type != "rae"], ids=lambda c: c.type)
async def test_the_order_of_episodes_does_not_matter(config) -> None:
    rewards = [1.0, 0.0, 0.25, 0.25]
    found = await credited(config, [trace(reward) for reward in rewards])
    turned = await credited(config, [trace(reward) for reward in reversed(rewards)])
    assert turned[::-1] == pytest.approx(found, **EXACT)


@pytest.mark.parametrize("kind", [GRPOConfig, EchoConfig])
async def test_prompt_mean_vectors(vectors, kind) -> None:
    for case in vectors["prompt_mean"]["cases"]:
        algorithm = make_algorithm(kind(loss_aggregation="prompt"))
        weights, advantages = [], []
        for group in case["inputs"]["groups"]:
            traces = [masked(*pair) for pair in zip(group["rewards"], group["loss_mask"], strict=True)]
            await algorithm.score_group([episode(item) for item in traces])
            for item in traces:
                (sample,) = flatten_trace(item, seq_len=64).samples
                kept = drop_zero_signal(sample)
                weights.append([0.0] * len(sample.mask) if kept is None else kept.rl_weights.tolist())
                advantages.append(sample.advantages.tolist())
        expected = case["expected"]
        for row, wanted in zip(weights, expected["rl_weights_flat"], strict=True):
            assert row == pytest.approx(wanted, rel=1e-7)
        for row, wanted in zip(advantages, expected["advantages_flat"], strict=True):
            assert row == pytest.approx(wanted, rel=1e-6)
        assert sum(map(sum, weights)) == pytest.approx(expected["n_rl"], rel=1e-6)


def masked(reward: float, mask: list[int]) -> Trace:
    """A trace of one message that holds exactly these sampled tokens."""
    item = trace(reward, [("assistant", len(mask))])
    item.nodes[0].mask = [bool(value) for value in mask]
    item.nodes[0].logprobs = [-0.5] * sum(mask)
    return item
