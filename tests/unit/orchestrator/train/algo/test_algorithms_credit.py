"""Worked credit of every comparing algorithm, through its public class on real episodes."""

import logging
from typing import Any

import numpy as np
import pytest
from verifiers.v1 import Trace
from verifiers.v1.semantic import ParentLink

from braidrl.configs.algorithm import (
    EchoConfig,
    GRPOConfig,
    HierarchicalGRPOConfig,
    MaxRLConfig,
    RAEConfig,
)
from braidrl.configs.algorithm.group import LinearPenaltyConfig
from braidrl.orchestrator.train.algo import make_algorithm
from braidrl.orchestrator.train.algo.advantage import weighted_advantages
from braidrl.orchestrator.train.algo.length_penalty import (
    call_totals,
    length_penalty,
    linear_penalty,
    subagent_calls,
)
from braidrl.orchestrator.train.samples import drop_zero_signal, flatten_trace
from tests.support.credit import EXACT, conversation, credited
from tests.support.episodes import advantages_of, episode, node, trace

WEIGHTS = ("num_output_tokens_weight", "num_input_tokens_weight", "num_turns_weight")


def penalty_of(inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {name: inputs[name] for name in WEIGHTS} | more


async def test_linear_length_penalty_vectors(worked_cases) -> None:
    seen = 0
    for case in worked_cases["grpo_length_penalty_linear"]:
        inputs, expected = case["inputs"], case["expected"]
        counts = [inputs[name] for name in ("output_tokens", "input_tokens", "turns")]
        penalty = LinearPenaltyConfig(**penalty_of(inputs))
        shaped = np.array(inputs["rewards"]) - linear_penalty(inputs["rewards"], *counts, penalty)
        assert shaped == pytest.approx(expected["shaped_rewards"], **EXACT)
        if not any(counts[0]):
            continue  # traces without sampled tokens are not compared, so only the formula is tested
        seen += 1
        traces = [conversation(reward, *count) for reward, *count in zip(inputs["rewards"], *counts)]
        config = GRPOConfig(length_penalty=penalty)
        assert await credited(config, traces) == pytest.approx(expected["advantages"], **EXACT)
    assert seen == 6


class LongTrace(Trace):
    """Trace whose harness counts the turns."""

    turns: int

    @property
    def num_turns(self) -> int:
        return self.turns


def calls(reward: float, rollout: dict[str, Any]) -> Trace:
    """Return a trace with one branch per call and its semantic edges."""
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


async def test_subagent_length_penalty_vectors(worked_cases) -> None:
    for case in worked_cases["grpo_length_penalty_linear_subagent"]:
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


async def test_length_weighted_baseline_vectors(worked_cases) -> None:
    config = GRPOConfig(length_weighted_baseline=True)
    for case in worked_cases["grpo_length_weighted_baseline"]:
        rewards, tokens = case["inputs"]["shaped_rewards"], case["inputs"]["trainable_tokens"]
        expected = case["expected"]["advantages"]
        assert weighted_advantages(rewards, tokens) == pytest.approx(expected, **EXACT)
        if all(tokens):
            traces = [conversation(reward, count, 1, 1) for reward, count in zip(rewards, tokens)]
            found = await credited(config, traces)
            assert found == pytest.approx(expected, **EXACT)
            assert np.dot(tokens, found) == pytest.approx(0, abs=1e-11)
    assert weighted_advantages([1.0, 0.0], [0, 0]).tolist() == [0.5, -0.5]


async def test_max_rl_vectors(worked_cases) -> None:
    for case in worked_cases["max_rl_advantage"]:
        found = await credited(MaxRLConfig(), [trace(reward) for reward in case["inputs"]["rewards"]])
        assert found == pytest.approx(case["expected"]["advantages"], **EXACT)


@pytest.mark.parametrize("rewards", [[-1.0, 1.0], [-1.0, -1.0, -1.0, 1.0]])
async def test_max_rl_without_a_positive_mean_is_zero_and_warns(rewards, caplog) -> None:
    algorithm = make_algorithm(MaxRLConfig())
    episodes = [episode(trace(reward)) for reward in rewards]
    with caplog.at_level(logging.WARNING):
        await algorithm.score_group(episodes)
        await algorithm.score_group(episodes)
    assert advantages_of(episodes) == [0.0] * len(rewards)
    assert len([line for line in caplog.messages if "non-negative" in line]) == 1
    assert algorithm.metrics()["zero_mean_groups"] == 2


async def test_rae_vectors(worked_cases) -> None:
    for case in worked_cases["rae_advantage"]:
        algorithm = make_algorithm(RAEConfig(decay=case["inputs"]["decay"]))
        for group, expected in zip(case["inputs"]["groups"], case["expected"]["advantages"], strict=True):
            played = [episode(*(trace(reward, agent=agent) for agent, reward in group))]
            await algorithm.score_batch(played)
            assert advantages_of(played) == pytest.approx(expected, **EXACT)
        baselines = algorithm.state_dict()["baselines"]
        assert baselines == pytest.approx(case["expected"]["final_baselines"], **EXACT)


async def test_rae_resumes_from_its_state() -> None:
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


async def test_hierarchical_vectors(worked_cases) -> None:
    for case in worked_cases["hierarchical_grpo_advantage"]:
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
async def test_prompt_mean_vectors(worked_cases, kind) -> None:
    for case in worked_cases["prompt_mean"]:
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
    """Return a trace of one message with this mask of sampled tokens."""
    item = trace(reward, [("assistant", len(mask))])
    item.nodes[0].mask = [bool(value) for value in mask]
    item.nodes[0].logprobs = [-0.5] * sum(mask)
    return item
