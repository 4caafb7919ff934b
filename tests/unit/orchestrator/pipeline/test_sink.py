"""The sink: eligibility, credit, order, signal and staleness, from ended episodes to batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import verifiers.v1 as vf

from braidrl.configs.algorithm import EchoConfig
from braidrl.configs.orchestrator import GatewayConfig, OrchestratorConfig
from braidrl.orchestrator.envs.source import FinishedEpisode, TrainEnv
from braidrl.orchestrator.gateway.server import Gateway
from braidrl.orchestrator.pipeline.buffer import CollectedBatch
from braidrl.orchestrator.pipeline.groups import Group
from braidrl.orchestrator.pipeline.no_signal import NoSignalError
from braidrl.orchestrator.pipeline.records import group_records
from braidrl.orchestrator.pipeline.sink import Sink
from braidrl.orchestrator.train.algo import make_algorithm
from tests.support.stub_episodes import SAMPLED, make_episode, make_failure, observe
from tests.support.stub_trainer import orchestrator_config


def make_config(**settings: Any) -> OrchestratorConfig:
    settings = {"batch_size": 4} | settings
    return orchestrator_config(Path("model"), Path("run"), "http://127.0.0.1:9/v1", **settings)


def make_env(config: OrchestratorConfig, group_size: int = 2) -> TrainEnv:
    source = config.train.source[0].model_copy(update={"group_size": group_size})
    return TrainEnv(source, config, Gateway(GatewayConfig(), {}, seed=0, context=64))


def open_group(index: int, env: TrainEnv) -> Group:
    """Return a dispatched group with all episodes of its task."""
    return Group(index, env, env.curriculum.next_task(), range(env.source.group_size))


async def fill(sink: Sink, group: Group, episodes: list[FinishedEpisode]) -> None:
    """End all episodes of a group."""
    for number, finished in enumerate(episodes):
        finished.episode.group = vf.GroupInfo(id=group.id)
        await sink.arrive(group, number, finished)
    await sink.complete(group)


async def add(sink: Sink, env: TrainEnv, index: int, rewards: list[float | None], version: int = 0) -> Group:
    group = open_group(index, env)
    episodes = [make_episode(group.task, r, f"{index}/{n}", version) for n, r in enumerate(rewards)]
    await fill(sink, group, episodes)
    return group


def credits(batch: CollectedBatch) -> list[float]:
    """Return the advantage of the last token of each sample, in batch order."""
    return [float(sample.advantages[-1]) for sample in batch.training_batch.samples]


async def test_groups_are_formed_by_id_while_prompts_are_interleaved() -> None:
    config = make_config(constant_trainer_batch_size=False)
    sink, env = Sink(config), make_env(config)
    a, b = (open_group(index, env) for index in range(2))
    for group, number, reward in ((a, 0, 1.0), (b, 0, 0.0), (a, 1, 1.0), (b, 1, 0.0)):
        await sink.arrive(group, number, make_episode(group.task, reward, f"{group.id}/{number}"))
        if group.complete:
            await sink.complete(group)
    credit = [node.advantages for group in (a, b) for e in group.episodes for node in e.traces[0].nodes[1:]]
    assert credit == [[0.0] * SAMPLED] * 4


async def test_batches_are_in_dispatch_order_and_the_rest_waits() -> None:
    config = make_config(max_off_policy_steps=1)
    sink, env = Sink(config), make_env(config)
    for index in (2, 0):
        await add(sink, env, index, [1.0, 0.0])
    await add(sink, env, 1, [0.25, 0.0])
    batch = sink.take(1)
    assert batch is not None
    assert credits(batch) == [0.5, -0.5, 0.125, -0.125]
    assert [trace.group.index for trace in sink.buffer.ready] == [2, 2]
    assert sink.take(2) is None
    assert (sink.buffer.shipped, len(sink.buffer.ready)) == (1, 2)


async def test_traces_without_signal_are_replaced_before_they_count() -> None:
    config = make_config()
    sink, env = Sink(config), make_env(config)
    await add(sink, env, 0, [1.0, 1.0])
    await add(sink, env, 1, [1.0, 0.0])
    assert len(sink.buffer.ready) == 2
    await add(sink, env, 2, [0.0, 1.0])
    batch = sink.take(1)
    assert batch is not None
    groups = [sample.group_id for sample in batch.training_batch.samples]
    assert groups == ["stub-000001"] * 2 + ["stub-000002"] * 2


async def test_traces_without_signal_may_leave_a_smaller_batch_and_an_empty_one_is_skipped() -> None:
    config = make_config(constant_trainer_batch_size=False)
    sink, env = Sink(config), make_env(config)
    for index, rewards in enumerate(([1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [1.0, 0.0])):
        await add(sink, env, index, rewards)
    batch = sink.take(1)
    assert batch is not None
    assert len(batch.traces) == 4
    assert [sample.group_id for sample in batch.training_batch.samples] == ["stub-000003"] * 2
    assert sink.take_metrics()["batches/skipped"] == 1


@pytest.mark.parametrize(("broken", "reason"), [(None, "no_reward"), (float("nan"), "nonfinite_reward")])
async def test_a_missing_reward_excludes_its_trace_and_is_counted(broken: float | None, reason: str) -> None:
    config = make_config()
    sink, env = Sink(config), make_env(config, group_size=3)
    await add(sink, env, 0, [1.0, broken, 0.0])
    assert [trace.samples[0].advantages[-1] for trace in sink.buffer.ready] == [0.5, -0.5]
    assert sink.take_metrics()[f"refused/{reason}"] == 1


@pytest.mark.parametrize("logprobs", [SAMPLED - 1, SAMPLED + 1])
async def test_a_trace_with_a_missing_or_extra_logprob_is_dropped(logprobs: int) -> None:
    config = make_config()
    sink, env = Sink(config), make_env(config, group_size=3)
    group = open_group(0, env)
    episodes = [make_episode(group.task, reward, f"0/{reward}") for reward in (1.0, 0.0)]
    odd = make_episode(group.task, 0.5, "0/2", logprobs=logprobs)
    await fill(sink, group, [*episodes, odd])
    kept = {trace.samples[0].trace_id for trace in sink.buffer.ready}
    assert kept == {finished.episode.traces[0].id for finished in episodes}
    assert sink.take_metrics()["refused/misaligned_logprobs"] == 1


async def test_failed_episodes_are_left_out_and_the_rest_trains() -> None:
    config = make_config()
    sink, env = Sink(config), make_env(config, group_size=3)
    group = open_group(0, env)
    good = [make_episode(group.task, reward, f"0/{reward}") for reward in (1.0, 0.0)]
    await fill(sink, group, [good[0], make_failure(group.task, "0/1"), good[1]])
    assert [float(trace.samples[0].advantages[-1]) for trace in sink.buffer.ready] == [0.5, -0.5]
    metrics = sink.take_metrics()
    assert (metrics["episodes/done"], metrics["episodes/failed"]) == (3, 1)
    assert sink.last.groups == [(group, "signal")]


@pytest.mark.parametrize("constant", [True, False])
async def test_a_group_with_too_few_survivors_is_dropped_and_counted(constant: bool) -> None:
    config = make_config(constant_trainer_batch_size=constant)
    sink, env = Sink(config), make_env(config)
    group = open_group(0, env)
    await fill(sink, group, [make_episode(group.task, 1.0, "0/0"), make_failure(group.task, "0/1")])
    assert sink.buffer.ready == []
    assert sink.take_metrics()["groups/too_few"] == 1


@pytest.mark.parametrize("constant", [True, False])
async def test_the_last_survivor_of_a_group_still_trains_its_observations(constant: bool) -> None:
    config = make_config(constant_trainer_batch_size=constant, max_empty_batches=1)
    sink, env = Sink(config), make_env(config)
    echo = EchoConfig()
    env.source, env.algorithm = env.source.model_copy(update={"algo": echo}), make_algorithm(echo)
    for index in range(4):  # four episodes without signal would end the run
        group = open_group(index, env)
        alone = observe(make_episode(group.task, 1.0, f"{index}/0"))
        await fill(sink, group, [alone, make_failure(group.task, f"{index}/1")])
    assert [outcome for _, outcome in sink.last.groups] == ["too_few"] * 4
    batch = sink.take(1)
    assert batch is not None
    for sample in batch.training_batch.samples:
        assert sample.ce_weights is not None and sample.ce_weights.tolist()[-2:] == pytest.approx([0.1, 0.1])
        assert sample.rl_weights is not None and not sample.rl_weights.any()


async def test_a_group_of_failed_episodes_is_recorded_and_does_not_train() -> None:
    config = make_config(constant_trainer_batch_size=False)
    sink, env = Sink(config), make_env(config)
    group = open_group(0, env)
    await fill(sink, group, [make_failure(group.task, f"0/{number}") for number in range(2)])
    await add(sink, env, 1, [1.0, 0.0])
    records = [
        (record["braid"]["outcome"], record["errors"]) for record in group_records(sink.last.groups, 1)
    ]
    assert [outcome for outcome, _ in records] == ["too_few"] * 2 + ["signal"] * 2
    assert [errors[0]["message"] for _, errors in records[:2]] == ["it broke"] * 2
    assert {trace.group.index for trace in sink.buffer.ready} == {1}
    assert (env.yield_estimate.episodes, env.yield_estimate.traces) == (2, 2)
    metrics = sink.take_metrics()
    assert (metrics["episodes/failed"], metrics["groups/too_few"], metrics["reward/mean"]) == (2, 1, 0.5)


async def test_a_failed_scoring_call_fails_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    sink, env = Sink(config), make_env(config)

    async def unreachable(episode: vf.Episode) -> None:
        raise ConnectionError("the teacher is away")

    monkeypatch.setattr(env.algorithm, "score_episode", unreachable)
    group = await add(sink, env, 0, [1.0, 0.0])
    assert sink.last.groups == [(group, "too_few")]
    assert [finished.error for finished in group.finished.values()] == [
        "ConnectionError: scoring: the teacher is away"
    ] * 2


async def test_a_broken_algorithm_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    sink, env = Sink(config), make_env(config)

    async def broken(episodes: list[vf.Episode]) -> None:
        raise ZeroDivisionError("mine")

    monkeypatch.setattr(env.algorithm, "score_group", broken)
    with pytest.raises(RuntimeError, match=r"GRPOAlgorithm\.score_group failed on group stub-000000.*mine"):
        await add(sink, env, 0, [1.0, 0.0])


async def test_staleness_counts_from_the_oldest_token() -> None:
    config = make_config(max_off_policy_steps=2)
    sink, env = Sink(config), make_env(config)
    group = open_group(0, env)
    episodes = [make_episode(group.task, reward, f"0/{reward}", version=2) for reward in (1.0, 0.0)]
    trace_id = episodes[0].episode.traces[0].id
    episodes[0].spans[trace_id] = [[(0, 1), (1, 1), (2, 1)]]  # two updates during one rollout
    await fill(sink, group, episodes)
    trace = sink.buffer.ready[0]
    assert (trace.oldest, trace.newest) == (0, 2)
    assert (trace.samples[0].version_start, trace.samples[0].version_end) == (0, 2)
    assert trace.staleness(3) == 2
    assert sink.drop_stale(3) == []
    assert sink.drop_stale(4) == []  # its sibling is fresh enough, so the group is not lost
    assert [trace.oldest for trace in sink.buffer.ready] == [2]
    assert sink.drop_stale(6) == [group]
    assert sink.take_metrics()["traces/stale"] == 2


async def test_a_used_group_is_not_returned_when_its_rest_gets_stale() -> None:
    config = make_config(batch_size=6)
    sink, env = Sink(config), make_env(config, group_size=4)
    for index in range(2):
        await add(sink, env, index, [1.0, 0.0, 0.5, 0.25])
    batch = sink.take(1)
    assert batch is not None and await sink.credit(batch)
    assert len(sink.buffer.ready) == 2
    assert sink.drop_stale(2) == []
    assert len(sink.buffer.ready) == 0


@pytest.mark.parametrize(
    ("bound", "version", "shipped", "room"),
    [(0, 0, 0, 4), (0, 1, 1, 4), (1, 0, 1, 4), (2, 1, 1, 12), (1, 9, 9, 4)],
)
def test_room_follows_the_bound_until_the_last_step(
    bound: int, version: int, shipped: int, room: int
) -> None:
    sink = Sink(make_config(max_off_policy_steps=bound, max_steps=10))
    sink.resume_at(shipped)
    assert sink.buffer.room(version) == room


async def test_groups_without_signal_are_explained_and_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    config = make_config(max_empty_batches=2)
    sink, env = Sink(config), make_env(config)
    await add(sink, env, 0, [1.0, 1.0])
    await add(sink, env, 1, [1.0, 0.0])  # signal resets the count
    for index in (2, 3, 4):
        await add(sink, env, index, [1.0, 1.0])
    assert ["no signal in 2 groups (4 episodes) in a row" in line for line in caplog.messages] == [True]
    explanation = r"4 groups \(8 episodes\).*too easy, too hard, or constant.*2 batches' worth"
    with pytest.raises(NoSignalError, match=explanation):
        await add(sink, env, 5, [1.0, 1.0])


async def test_metrics_of_a_step() -> None:
    config = make_config()
    sink, env = Sink(config), make_env(config)
    await add(sink, env, 0, [1.0, 0.0])
    await add(sink, env, 1, [1.0, 1.0])
    metrics = sink.take_metrics()
    assert metrics["reward/mean"] == metrics["reward/stub/mean"] == 0.75
    assert metrics["reward/std"] == pytest.approx(np.std([1, 0, 1, 1]))
    assert metrics["zero_signal"] == 0.5
    assert metrics["tokens/mean"] == SAMPLED
    assert metrics["episodes/done"] == 4
    assert sink.take_metrics()["zero_signal"] == 0
