"""The conformance kit: every built-in algorithm passes, and every check detects a broken rule."""

import math
from collections.abc import Callable

import pytest

from braidrl.configs.algorithm import (
    BaseAlgorithmConfig,
    EchoConfig,
    GRPOConfig,
    HierarchicalGRPOConfig,
    MaxRLConfig,
    RAEConfig,
)
from braidrl.configs.plugins import ALGORITHMS, BUILT_IN
from braidrl.orchestrator.train.algo import Algorithm, make_algorithm
from braidrl.orchestrator.train.algo.routing import assign_advantages, eligible_traces, stamp_sampled
from braidrl.testing import CHECKS, check_algorithm, conformance

CONFIGS = [
    GRPOConfig(),
    GRPOConfig.model_validate(
        {"length_penalty": {}, "length_weighted_baseline": True, "loss_aggregation": "prompt"}
    ),
    GRPOConfig(advantage_norm="group_zscore"),
    GRPOConfig.model_validate({"advantage_norm": "batch_zscore", "length_penalty": {}}),
    GRPOConfig(advantage_norm="none"),
    MaxRLConfig(),
    RAEConfig(),
    HierarchicalGRPOConfig(),
    EchoConfig(),
    EchoConfig(advantage_norm="batch_mean", loss_aggregation="prompt"),
]
CASTS = [("agent",), ("proposer", "solver", "solver")]


def test_every_built_in_without_model_queries_is_tested() -> None:
    without = {
        name
        for name, algorithm in ALGORITHMS.items()
        if algorithm.origin == BUILT_IN and not algorithm.config.needs_model
    }
    assert {config.type for config in CONFIGS} == without


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.type)
@pytest.mark.parametrize("agents", CASTS, ids=len)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_built_in_algorithms_conform(check, agents: tuple[str, ...], config: BaseAlgorithmConfig) -> None:
    check(lambda: make_algorithm(config), agents)


class Absolute(Algorithm[GRPOConfig]):
    """Base of the broken algorithms below: the advantage is the reward itself."""

    async def score_group(self, episodes) -> None:
        for item in eligible_traces(episodes):
            assign_advantages(item, item.reward)


class Misaligned(Absolute):
    async def score_group(self, episodes) -> None:
        for item in eligible_traces(episodes):
            item.nodes[1].advantages = [1.0]


class WeighsToolOutput(Absolute):
    async def score_episode(self, episode) -> None:
        for item in episode.traces:
            item.nodes[2].loss_weights = {"rl": [1.0] * len(item.nodes[2].token_ids)}


class RewritesRewards(Absolute):
    async def score_group(self, episodes) -> None:
        for item in eligible_traces(episodes):
            item.rewards = {}


class FirstIsBest(Absolute):
    async def score_group(self, episodes) -> None:
        for place, item in enumerate(eligible_traces(episodes)):
            assign_advantages(item, float(place))


class CountsFailures(Absolute):
    async def score_group(self, episodes) -> None:
        traces = [item for played in episodes for item in played.traces]
        mean = sum(item.reward for item in traces if math.isfinite(item.reward)) / max(1, len(traces))
        for item in eligible_traces(episodes):
            assign_advantages(item, item.reward - mean)


class CountsEveryReward(Absolute):
    async def score_group(self, episodes) -> None:
        rewards = [item.reward for played in episodes for item in played.traces if item.ok]
        for item in eligible_traces(episodes):
            assign_advantages(item, item.reward - sum(rewards) / len(rewards))


class RewardsTheLastOneStanding(Absolute):
    async def score_group(self, episodes) -> None:
        traces = eligible_traces(episodes)
        for item in traces:
            assign_advantages(item, float(len(traces) == 1 < len(episodes)))


class Forgets(Absolute):
    order_matters = True
    seen = 0

    async def score_group(self, episodes) -> None:
        for item in eligible_traces(episodes):
            assign_advantages(item, float(self.seen))
            self.seen += 1


class RoundsAMean(Absolute):
    async def score_group(self, episodes) -> None:
        rewards = [item.reward for item in eligible_traces(episodes)]
        for item in eligible_traces(episodes):
            assign_advantages(item, item.reward - sum(rewards) / len(rewards))


class GrowingWeights(Absolute):
    weight = 0.0

    async def score_episode(self, episode) -> None:
        self.weight += 1.0
        for item in episode.traces:
            stamp_sampled(item, "rl", self.weight)


@pytest.mark.parametrize(
    ("algorithm", "check", "message"),
    [
        (Misaligned, "check_alignment", "misaligned_advantages"),
        (WeighsToolOutput, "check_alignment", "not sampled have rl weights"),
        (RewritesRewards, "check_alignment", "may only write streams"),
        (FirstIsBest, "check_permutation", "order of a group's episodes"),
        (Absolute, "check_group_of_one", "a group of one has the advantages"),
        (CountsFailures, "check_failed_siblings", "siblings that cannot be compared"),
        (RewardsTheLastOneStanding, "check_failed_siblings", "the only episode that did not fail has"),
        (CountsEveryReward, "check_unusable_rewards", "finite"),
        (RoundsAMean, "check_equal_rewards", "equal rewards have the advantages"),
        (GrowingWeights, "check_permutation", "order of a group's episodes"),
        (Forgets, "check_state_round_trip", "resumed algorithm gives a different signal"),
    ],
)
def test_broken_rules_are_detected(algorithm: Callable[..., Algorithm], check: str, message: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=message):
        getattr(conformance, check)(lambda: algorithm(GRPOConfig()))


def test_check_algorithm_runs_every_check() -> None:
    check_algorithm(lambda: make_algorithm(GRPOConfig()))
    with pytest.raises(AssertionError, match="resumed"):
        check_algorithm(lambda: Forgets(BaseAlgorithmConfig()))


def test_wrong_barrier_declaration_is_detected() -> None:
    with pytest.raises(AssertionError, match=r"RAEConfig.barrier is 'batch', but .* Forgets is score_group"):
        check_algorithm(lambda: Forgets(RAEConfig()))
