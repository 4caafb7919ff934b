"""ECHO: predicted tokens of the environment and their weights."""

import numpy as np
import pytest
import torch
from verifiers.v1 import Trace
from verifiers.v1.semantic import ParentLink
from verifiers.v1.types import AssistantMessage

from braidrl.configs.algorithm import BaseAlgorithmConfig, EchoConfig, GRPOConfig
from braidrl.configs.loss import IPOLossConfig
from braidrl.orchestrator.train.algo import make_algorithm
from braidrl.orchestrator.train.samples import CE, drop_zero_signal, flatten_trace
from braidrl.packing import Normalisers, pack
from braidrl.trainer.model.forward import TokenOutputs, to_device
from braidrl.trainer.rl.components import component_loss
from braidrl.trainer.rl.losses import make_loss
from braidrl.transport.types import TrainingSample
from tests.support.episodes import advantages_of, episode, node, trace

ROLES = [("user", 2), ("assistant", 2), ("tool", 5), ("assistant", 1)]


def weights_of(item: Trace, branch: int = 0) -> list[float] | None:
    return item.branches[branch].loss_weights(CE)


def keep_even(item: Trace, *, at_least: int = 0) -> list[list[bool]]:
    """Filter that keeps tokens at even positions from `at_least`."""
    return [
        [place % 2 == 0 and place >= at_least for place in range(len(branch.token_ids))]
        for branch in item.branches
        if branch.trainable
    ]


def keep_too_little(item: Trace) -> list[list[bool]]:
    return [[True]]


def keep_given(item: Trace, *, masks: list[list[bool]]) -> list[list[bool]]:
    return masks


def filtered(function: str, **kwargs) -> EchoConfig:
    return EchoConfig.model_validate({"filter": {"import_path": f"{__name__}.{function}", "kwargs": kwargs}})


async def test_echo_vectors(worked_cases) -> None:
    for case in worked_cases["echo_ce_weights"]:
        inputs = case["inputs"]
        item = trace(roles=[(given["role"], given["n"]) for given in inputs["nodes"]])
        for graph_node, given in zip(item.nodes, inputs["nodes"], strict=True):
            assert graph_node.sampled == given["sampled"]
            graph_node.is_content = [bool(value) for value in given["is_content"] or []]
        roles = {role: {"alpha": alpha} for role, alpha in inputs["roles"].items()}
        config = EchoConfig.model_validate({"roles": roles})
        if inputs["keep"] is not None:
            masks = [[bool(value) for value in inputs["keep"]]]
            config = config.model_copy(update={"filter": filtered("keep_given", masks=masks).filter})
        await make_algorithm(config).finalize_episode(episode(item))
        expected = case["expected"]["ce_weights"]
        assert (weights_of(item) or [0.0] * len(expected)) == expected


async def test_rl_stays_on_sampled_tokens_and_keeps_its_weight() -> None:
    episodes = [episode(trace(reward, ROLES)) for reward in (1.0, 0.0)]
    algorithm = make_algorithm(EchoConfig())
    for played in episodes:
        await algorithm.finalize_episode(played)
    await algorithm.score_group(episodes)
    assert advantages_of(episodes) == [0.5, -0.5]
    (sample,) = flatten_trace(episodes[0].traces[0], seq_len=64).samples
    kept = drop_zero_signal(sample)
    assert kept is not None and kept.rl_weights is None
    assert kept.mask.tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 0, 1]
    assert kept.ce_weights.tolist() == [0, 0, 0, 0, *[np.float32(0.1)] * 5, 0]


async def test_echo_rows_do_not_change_the_rl_gradient() -> None:
    def gradient(samples: list[TrainingSample]) -> torch.Tensor:
        """Return the gradient of the loss with respect to the log-probs of the plain rows, in token order."""
        total, found = torch.zeros(()), []
        for micro in pack(samples, max_tokens=64):
            device = to_device(micro, torch.device("cpu"))
            plain = device.sample_index < 2
            x = torch.linspace(-0.9, -0.1, len(plain)).where(~plain, torch.tensor(-0.75)).requires_grad_()
            outputs = TokenOutputs(x, x.detach())
            loss, _ = component_loss(outputs, device, make_loss(IPOLossConfig()), Normalisers.of(samples))
            total = total + loss
            found.append((x, plain))
        total.backward()
        return torch.cat([x.grad[plain] for x, plain in found])

    async def rows(config: BaseAlgorithmConfig, rewards: list[float]) -> list[TrainingSample]:
        episodes = [episode(trace(reward, ROLES)) for reward in rewards]
        algorithm = make_algorithm(config)
        for played in episodes:
            await algorithm.finalize_episode(played)
        await algorithm.score_group(episodes)
        samples = [flatten_trace(played.traces[0], seq_len=64).samples[0] for played in episodes]
        return [kept for sample in samples if (kept := drop_zero_signal(sample)) is not None]

    plain = await rows(GRPOConfig(), [1.0, 0.0])
    beside = await rows(EchoConfig(), [1.0, 1.0])  # no advantage, so only observations train
    assert len(beside) == 2
    alone, together = gradient(plain), gradient([*plain, *beside])
    assert alone.abs().sum() > 0
    torch.testing.assert_close(together, alone, rtol=0, atol=0)


async def test_equal_rewards_still_train_the_observations() -> None:
    episodes = [episode(trace(1.0, ROLES)) for _ in range(2)]
    algorithm = make_algorithm(EchoConfig())
    for played in episodes:
        await algorithm.finalize_episode(played)
    await algorithm.score_group(episodes)
    for played in episodes:
        (sample,) = flatten_trace(played.traces[0], seq_len=64).samples
        kept = drop_zero_signal(sample)
        assert kept is not None
        assert not kept.rl_weights.any()
        assert np.count_nonzero(kept.ce_weights) == 5


async def test_a_message_that_the_policy_did_not_write_may_be_predicted_before_none_is() -> None:
    item = trace(roles=[("assistant", 2), ("user", 1), ("assistant", 1), ("assistant", 3)])
    for place in (0, 3):
        item.nodes[place] = node("user", len(item.nodes[place].token_ids), item.nodes[place].parent)
        item.nodes[place].message = AssistantMessage(content="as if")
    config = EchoConfig.model_validate({"roles": {"assistant": {"alpha": 0.5}}})
    await make_algorithm(config).finalize_episode(episode(item))
    assert weights_of(item) == [0, 0, 0, 0, 0.5, 0.5, 0.5]


async def test_a_filter_narrows_the_selection() -> None:
    item = trace(roles=ROLES)
    await make_algorithm(filtered("keep_even", at_least=6)).finalize_episode(episode(item))
    assert weights_of(item) == [0, 0, 0, 0, 0, 0, 0.1, 0, 0.1, 0]


async def test_a_filter_of_the_wrong_length_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"masks of \[1\] tokens .* have \[10\]"):
        await make_algorithm(filtered("keep_too_little")).finalize_episode(episode(trace(roles=ROLES)))


@pytest.mark.parametrize("path", ["no_such_module.f", f"{__name__}.no_such_function", f"{__name__}.ROLES"])
def test_a_missing_filter_fails_at_startup(path: str) -> None:
    config = EchoConfig.model_validate({"filter": {"import_path": path}})
    with pytest.raises(ValueError, match=r"algo\.filter\.import_path"):
        make_algorithm(config)


async def test_shared_messages_count_once_and_take_the_larger_weight() -> None:
    item = trace(roles=ROLES)
    item.nodes.append(node("user", 2, 2))
    item.nodes.append(node("assistant", 1, 4))
    masks = [[place < 6 for place in range(10)], [place < 8 for place in range(12)]]
    await make_algorithm(filtered("keep_given", masks=masks)).finalize_episode(episode(item))
    assert weights_of(item, 0) == [0, 0, 0, 0, 0.1, 0.1, 0.1, 0.1, 0, 0]
    first, second = flatten_trace(item, seq_len=64).samples
    assert np.count_nonzero(first.ce_weights) == 4
    assert second.ce_weights is None


async def test_branches_that_do_not_train_are_not_predicted_and_need_no_mask() -> None:
    item = trace(roles=ROLES)
    item.nodes += [node("tool", 2, 1), node("assistant", 1, 4)]
    item.nodes[5].semantic_parents.append(ParentLink(node=1, type="compaction_attempt"))
    assert [branch.trainable for branch in item.branches] == [True, False]
    await make_algorithm(filtered("keep_even")).finalize_episode(episode(item))
    assert weights_of(item, 0) == [0, 0, 0, 0, 0.1, 0, 0.1, 0, 0.1, 0]
    assert weights_of(item, 1) is None


async def test_traces_that_do_not_train_are_left_alone() -> None:
    frozen, trained = trace(roles=ROLES, trainable=False), trace(roles=ROLES)
    await make_algorithm(EchoConfig()).finalize_episode(episode(frozen, trained))
    assert weights_of(frozen) is None
    assert trained.nodes[2].loss_weights == {CE: [0.1] * 5}
    assert trained.nodes[1].loss_weights is None
