"""Credit on real episodes, through the public classes."""

import logging
import math
import re
from typing import get_args

import numpy as np
import pytest
import torch

from braidrl.configs.algorithm import AlgorithmConfig, BaseAlgorithmConfig, GRPOConfig
from braidrl.configs.core.faults import tag_of
from braidrl.configs.loss import IPOLossConfig
from braidrl.orchestrator.train.algo import ALGORITHM_CLASSES, Algorithm, make_algorithm
from braidrl.orchestrator.train.algo.advantage import group_advantages
from braidrl.orchestrator.train.algo.grpo import GRPOAlgorithm
from braidrl.orchestrator.train.algo.routing import assign_advantages, eligible_traces, stamp_action_weights
from braidrl.orchestrator.train.samples import CE
from braidrl.packing import Normalisers, pack
from braidrl.trainer.model.forward import TokenOutputs, to_device
from braidrl.trainer.rl.components import component_loss
from braidrl.trainer.rl.losses import make_loss
from braidrl.transport.types import TrainingSample
from tests.support.episodes import advantages_of, episode, node, trace
from tests.support.paths import DOCS
from tests.support.user_code import check_centred_algorithm


async def test_grpo_vectors(worked_cases) -> None:
    for case in worked_cases["grpo_advantage"]:
        episodes = [episode(trace(reward)) for reward in case["inputs"]["rewards"]]
        await make_algorithm(GRPOConfig()).score_group(episodes)
        assert advantages_of(episodes) == pytest.approx(case["expected"]["advantages"], abs=1e-15)


async def test_equal_rewards_that_float32_cannot_write_give_exact_zero() -> None:
    episodes = [episode(trace(float(np.float32(0.95)))) for _ in range(7)]
    await make_algorithm(GRPOConfig()).score_group(episodes)
    assert advantages_of(episodes) == [0.0] * 7


async def test_groups_are_told_apart_by_id_not_by_position() -> None:
    episodes = [episode(trace(reward), group=group) for group, reward in zip("abab", (1.0, 0.0, 1.0, 0.0))]
    await make_algorithm(GRPOConfig()).score_group(episodes)
    assert advantages_of(episodes) == [0.0] * 4


async def test_a_group_of_one_gets_zero_and_a_warning(caplog) -> None:
    episodes = [episode(trace(3.0))]
    with caplog.at_level(logging.WARNING):
        await make_algorithm(GRPOConfig()).score_group(episodes)
    assert advantages_of(episodes) == [0.0]
    assert "group_size" in caplog.text


async def test_traces_without_a_usable_reward_stay_out_and_are_counted() -> None:
    algorithm = make_algorithm(GRPOConfig())
    silent = trace(1.0, roles=[("user", 2)])
    excluded = [trace(math.nan), trace(None), trace(5.0, ok=False), trace(5.0, trainable=False), silent]
    episodes = [episode(item) for item in (trace(1.0), *excluded, trace(0.0))]
    broken = episode(trace(5.0), ok=False)
    await algorithm.score_group([*episodes, broken])
    assert advantages_of(episodes) == [0.5, None, None, None, None, None, -0.5]
    assert eligible_traces([*episodes, broken]) == [episodes[0].traces[0], episodes[-1].traces[0]]
    assert algorithm.metrics() == {
        "groups": 1.0,
        "zero_advantage_groups": 0.0,
        "traces": 2.0,
        "adv_zero_ratio": 0.0,
        "tokens": 6.0,
        "zero_advantage_tokens": 0.0,
        "excluded/nonfinite_reward": 1.0,
        "excluded/no_reward": 1.0,
        "excluded/error": 2.0,
        "excluded/not_trainable": 1.0,
        "excluded/no_sampled_tokens": 1.0,
    }
    assert algorithm.metrics() == {}


async def test_metrics_report_the_share_of_groups_without_signal() -> None:
    algorithm = make_algorithm(GRPOConfig())
    await algorithm.score_group([episode(trace(1.0), group="a"), episode(trace(1.0), group="a")])
    await algorithm.score_group([episode(trace(1.0), group="b"), episode(trace(0.0), group="b")])
    shares = {"zero_advantage_groups": 0.5, "adv_zero_ratio": 0.5, "zero_advantage_tokens": 0.5}
    assert algorithm.metrics() == {"groups": 2.0, "traces": 4.0, "tokens": 12.0, **shares}


async def test_an_empty_group_is_skipped() -> None:
    await make_algorithm(GRPOConfig()).score_group([])


def test_group_advantages_refuse_nonfinite_rewards() -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages([1.0, math.inf])


def test_advantages_reach_the_sampled_tokens_in_node_order() -> None:
    item = trace(roles=[("user", 2), ("assistant", 2), ("tool", 3), ("assistant", 1)])
    assign_advantages(item, [0.1, 0.2, 0.3])
    assert [graph_node.advantages for graph_node in item.nodes] == [None, [0.1, 0.2], None, [0.3]]
    assert item.branches[0].advantages == [0, 0, 0.1, 0.2, 0, 0, 0, 0.3]
    assign_advantages(item, -1)
    assert item.branches[0].advantages == [0, 0, -1, -1, 0, 0, 0, -1]


@pytest.mark.parametrize("values", [[0.1], [0.1] * 4, [], [0.1, 0.2, math.nan], math.inf])
def test_advantages_that_do_not_fit_are_an_error(values) -> None:
    item = trace(roles=[("user", 2), ("assistant", 3)])
    with pytest.raises(ValueError, match=item.id):
        assign_advantages(item, values)


def test_routing_vectors(worked_cases) -> None:
    for case in worked_cases["routing"]:
        mask = [bool(value) for value in case["inputs"]["mask"]]
        item = trace(roles=[("assistant", len(mask))])
        item.nodes[0].mask = mask
        if (existing := case["inputs"]["existing_ce_weights"]) is not None:
            item.nodes[0].loss_weights = {CE: existing}
        stamp_action_weights(item, case["inputs"]["action_loss_type"])
        streams = {name: item.branches[0].loss_weights(name) for name in ("rl", "ce", "ref_kl")}
        assert streams == case["expected"]


@pytest.mark.parametrize("component", ["ce", "ref_kl"])
def test_tool_output_is_never_an_action(component) -> None:
    item = trace(roles=[("user", 2), ("assistant", 2), ("tool", 5), ("assistant", 1)])
    stamp_action_weights(item, component)
    assert item.branches[0].loss_weights(component) == [0, 0, 1, 1, 0, 0, 0, 0, 0, 1]
    assert not any(item.branches[0].loss_weights("rl"))


async def test_finalize_routes_and_scores_only_episodes_that_have_something_to_train() -> None:
    class Imitation(BaseAlgorithmConfig):
        action_loss_type = "ce"

    class Recorder(Algorithm[Imitation]):
        scored: list

        async def score_episode(self, played) -> None:
            self.scored.append(played)

    recorder = Recorder(Imitation())
    recorder.scored = []
    good, silent, other = episode(), episode(trace(roles=[("user", 2)])), episode(trace(trainable=False))
    for played in (good, silent, other):
        await recorder.finalize_episode(played)
    assert recorder.scored == [good]
    assert good.traces[0].branches[0].loss_weights("ce") == [0, 0, 1, 1, 1]
    assert other.traces[0].nodes[1].loss_weights is None


async def test_plain_grpo_stamps_no_weights() -> None:
    played = episode()
    await make_algorithm(GRPOConfig()).finalize_episode(played)
    assert all(graph_node.loss_weights is None for graph_node in played.traces[0].nodes)


async def test_an_algorithm_of_a_user_reaches_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    class Centred(Algorithm):
        async def score_group(self, episodes) -> None:
            rewards = [played.traces[0].reward for played in episodes]
            for played, reward in zip(episodes, rewards, strict=True):
                assign_advantages(played.traces[0], reward - sum(rewards) / len(rewards))

    await check_centred_algorithm(Centred, monkeypatch)


def test_every_algorithm_is_built_from_its_config_and_starts_stateless() -> None:
    assert ALGORITHM_CLASSES["grpo"] is GRPOAlgorithm
    clients = object()
    algorithm = make_algorithm(GRPOConfig(), clients)
    assert algorithm.clients is clients
    assert algorithm.action_loss_type == "rl"
    state = algorithm.state_dict()
    algorithm.load_state_dict(state)
    assert state == {}


async def test_the_algorithm_of_the_documentation_runs() -> None:
    text = (DOCS / "algorithms.md").read_text()
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class Ranked" in code]
    scope: dict = {}
    exec(code, scope)
    for rewards, expected in (([3.0, 1.0, 2.0], [1.0, -1.0, 0.0]), ([5.0], [0.0])):
        episodes = [episode(trace(reward)) for reward in rewards]
        await scope["Ranked"](GRPOConfig()).score_group(episodes)
        assert advantages_of(episodes) == expected


def test_every_type_has_a_documented_class() -> None:
    union = get_args(AlgorithmConfig)[0]
    assert {tag_of(config) for config in get_args(union)} == set(ALGORITHM_CLASSES)
    for algorithm in ALGORITHM_CLASSES.values():
        assert algorithm.__doc__ is not None
        for part in ("Source:", "Assumes", "Degenerate cases:"):
            assert part in algorithm.__doc__, algorithm


def test_advantages_off_the_mask_count_for_nothing() -> None:
    """The masked mean of [1, 1, 10, 10] under [1, 1, 0, 0] is 1. A leading token is added, since the first token has
    no loss."""
    sample = TrainingSample(
        token_ids=np.arange(5, dtype=np.int32),
        mask=np.array([0, 1, 1, 0, 0], dtype=bool),
        sampling_logprobs=np.array([0, -0.5, -0.5, 0, 0], dtype=np.float32),
        advantages=np.array([10, 1, 1, 10, 10], dtype=np.float32),
    )
    (micro,) = pack([sample], max_tokens=8)
    x = torch.full((2,), -0.5, requires_grad=True)
    parts = (make_loss(IPOLossConfig()), Normalisers.of([sample]))
    loss, _ = component_loss(TokenOutputs(x, x.detach()), to_device(micro, torch.device("cpu")), *parts)
    assert loss.item() == -1.0


def test_a_stop_token_that_also_pads_is_trained() -> None:
    end = 0
    item = trace(roles=[("user", 2), ("assistant", 3)])
    item.nodes[1] = node("assistant", 3, 0)
    item.nodes[1].token_ids[-1] = end
    assign_advantages(item, 1.0)
    assert item.branches[0].advantages[-1] == 1.0
