"""Algorithms with `score_batch`: credit is final once the batch is full."""

from typing import Any, ClassVar

import numpy as np
import pytest
import verifiers.v1 as vf

from braidrl.configs.algorithm import Barrier, BaseAlgorithmConfig, GRPOConfig, RAEConfig
from braidrl.orchestrator.envs.source import TrainEnv
from braidrl.orchestrator.pipeline.buffer import CollectedBatch
from braidrl.orchestrator.pipeline.dispatcher import Dispatcher
from braidrl.orchestrator.pipeline.no_signal import NoSignalError
from braidrl.orchestrator.pipeline.sink import Sink
from braidrl.orchestrator.train.algo import Algorithm, make_algorithm
from braidrl.orchestrator.train.algo.advantage import group_advantages
from braidrl.orchestrator.train.algo.routing import assign_advantages, eligible_traces
from braidrl.testing import check_algorithm
from tests.support.stub_episodes import join, make_episode
from tests.unit.orchestrator.pipeline.test_sink import add, credits, fill, make_config, make_env, open_group


class CentredConfig(BaseAlgorithmConfig):
    barrier: ClassVar[Barrier] = "batch"


class Centred(Algorithm[CentredConfig]):
    """Assigns the reward minus the mean reward of the batch."""

    seen: list[int]

    async def score_batch(self, episodes: list[vf.Episode]) -> None:
        self.seen = [*getattr(self, "seen", []), len(episodes)]
        traces = eligible_traces(episodes)
        for trace, advantage in zip(traces, group_advantages([t.reward for t in traces]), strict=True):
            assign_advantages(trace, float(advantage))


def setup(**settings: Any) -> tuple[Sink, TrainEnv]:
    config = make_config(**settings)
    env = make_env(config)
    env.algorithm = Centred(CentredConfig())
    return Sink(config), env


async def test_a_batch_is_scored_once_whole_and_before_the_filter() -> None:
    sink, env = setup()
    await add(sink, env, 1, [0.0, 0.0])  # equal within the group, different within the batch
    await add(sink, env, 0, [1.0, 1.0])
    batch = sink.take(1)
    assert batch is not None and await sink.credit(batch)
    assert credits(batch) == [0.5, 0.5, -0.5, -0.5]
    assert env.algorithm.seen == [4]
    assert all(sample.rl_weights is None for sample in batch.training_batch.samples)


async def test_traces_that_turn_out_without_signal_leave_a_smaller_batch() -> None:
    sink, env = setup()
    await add(sink, env, 0, [0.5, 1.0])
    await add(sink, env, 1, [0.5, 0.0])
    batch = sink.take(1)
    assert batch is not None and await sink.credit(batch)
    assert (len(batch.traces), credits(batch)) == (4, [0.5, -0.5])
    assert sink.take_metrics()["traces/no_signal"] == 2


async def test_other_sources_of_the_batch_are_not_changed() -> None:
    sink, env = setup(batch_size=4)
    other = make_env(sink.config)
    await add(sink, other, 0, [1.0, 0.0])
    await add(sink, env, 1, [1.0, 0.5])
    batch = sink.take(1)
    assert batch is not None and await sink.credit(batch)
    assert credits(batch) == [0.5, -0.5, 0.25, -0.25]
    assert env.algorithm.seen == [2]


async def test_batches_without_signal_are_skipped_and_end_the_run_at_the_limit() -> None:
    sink, env = setup(max_empty_batches=2)

    async def next_batch(index: int) -> CollectedBatch:
        await add(sink, env, 2 * index, [1.0, 1.0])
        await add(sink, env, 2 * index + 1, [1.0, 1.0])
        batch = sink.take(1)
        assert batch is not None
        return batch

    assert not await sink.credit(await next_batch(0))
    assert sink.buffer.shipped == 0
    assert sink.take_metrics()["batches/skipped"] == 1
    with pytest.raises(NoSignalError, match="2 batches' worth"):
        await sink.credit(await next_batch(1))


async def test_an_episode_in_two_batches_is_scored_once_with_the_first() -> None:
    config = make_config(max_off_policy_steps=1)
    sink, env = Sink(config), make_env(config, group_size=1)
    env.algorithm = make_algorithm(RAEConfig(decay=0.5))
    rewards = [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0]]
    for index in (1, 2, 0):
        group = open_group(index, env)
        played = [make_episode(group.task, reward, f"{index}/0") for reward in rewards[index]]
        await fill(sink, group, [join(*played)])
    first, second = sink.take(1), sink.take(2)
    assert first is not None and second is not None
    assert [len({trace.group.index for trace in batch.traces}) for batch in (first, second)] == [2, 2]
    assert await sink.credit(first)
    assert env.algorithm.state_dict() != {"baselines": {}}
    assert await sink.credit(second)
    baseline, expected = 0.0, []
    for reward in [reward for episode in rewards for reward in episode]:
        expected.append(reward - baseline)
        baseline = 0.5 * baseline + 0.5 * reward
    assert credits(first) + credits(second) == pytest.approx(expected)
    assert env.algorithm.state_dict()["baselines"] == {"agent": pytest.approx(baseline)}


@pytest.mark.parametrize("norm", ["batch_mean", "batch_zscore"])
async def test_a_group_in_two_batches_is_shaped_once_and_normalised_per_batch(norm: str) -> None:
    """The length penalty is computed on the group, mean and deviation on the batch in which a trace trains."""
    sink, env = setup(batch_size=5, max_off_policy_steps=1)
    config = GRPOConfig.model_validate({"advantage_norm": norm, "length_penalty": {}})
    env.source, env.algorithm = env.source.model_copy(update={"algo": config}), make_algorithm(config)
    rewards = [[1.0, 0.0], [1.0, 0.5], [0.0, 0.75], [0.25, 0.25], [1.0, 1.0]]
    for index, group in enumerate(rewards):
        await add(sink, env, index, group)
    equally_long = 0.25 + 0.1 + 0.1
    paid = [np.array(group) - np.mean(group) * equally_long for group in rewards]
    for step, part in enumerate(np.split(np.concatenate(paid), 2), start=1):
        batch = sink.take(step)
        assert batch is not None and await sink.credit(batch)
        expected = part - part.mean()
        if norm == "batch_zscore":
            expected = expected / (part.std(ddof=1) + 1e-6)
        assert credits(batch) == pytest.approx(expected, rel=1e-6)
    assert env.algorithm.metrics()["adv_zero_ratio"] == 0


async def test_a_lone_survivor_is_compared_with_the_batch() -> None:
    sink, env = setup()
    config = GRPOConfig(advantage_norm="batch_mean")
    env.source, env.algorithm = env.source.model_copy(update={"algo": config}), make_algorithm(config)
    for index, reward in enumerate([1.0, 0.0, 0.75, 0.25]):
        await add(sink, env, index, [reward, None])
    batch = sink.take(1)
    assert batch is not None and await sink.credit(batch)
    assert credits(batch) == [0.5, -0.5, 0.25, -0.25]


async def test_the_dispatcher_ships_what_was_scored() -> None:
    sink, env = setup()
    dispatcher = Dispatcher([env], sink, lambda: 0, seed=0, max_concurrent=4)
    for index, reward in enumerate((1.0, 1.0, 0.0, 1.0)):  # the first batch is skipped
        await add(sink, env, index, [reward, reward])
    batch = await dispatcher.collect(1)
    assert credits(batch) == [-0.5, -0.5, 0.5, 0.5]
    assert sink.buffer.shipped == 1


async def test_streams_that_do_not_fit_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, env = setup()

    async def misaligned(episodes: list[vf.Episode]) -> None:
        episodes[0].traces[0].nodes[1].advantages = [1.0]

    monkeypatch.setattr(env.algorithm, "score_batch", misaligned)
    for index in range(2):
        await add(sink, env, index, [1.0, 0.0])
    batch = sink.take(1)
    assert batch is not None and not await sink.credit(batch)
    assert sink.take_metrics()["refused/misaligned_advantages"] == 1


async def test_a_score_batch_that_raises_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, env = setup()

    async def broken(episodes: list[vf.Episode]) -> None:
        raise ZeroDivisionError("mine")

    monkeypatch.setattr(env.algorithm, "score_batch", broken)
    for index in range(2):
        await add(sink, env, index, [1.0, 0.0])
    batch = sink.take(1)
    assert batch is not None
    with pytest.raises(RuntimeError, match=r"Centred.score_batch failed on the batch of step 1: .*mine"):
        await sink.credit(batch)


def test_a_score_batch_that_is_never_called_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"Centred overrides score_batch, but BaseAlgorithmConfig\.barrier is 'group'"
    ):
        Centred(BaseAlgorithmConfig())


def test_an_algorithm_with_score_batch_conforms() -> None:
    check_algorithm(lambda: Centred(CentredConfig()))
