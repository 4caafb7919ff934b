"""Barriers: without comparison of siblings, each episode enters a batch as soon as it is scored."""

import asyncio
import json
from collections import Counter
from typing import Any, ClassVar

import pytest
import verifiers.v1 as vf

from braidrl.configs.algorithm import (
    BaseAlgorithmConfig,
    GRPOConfig,
    OPDConfig,
    OPSDConfig,
    SFTDistillConfig,
)
from braidrl.configs.plugins import ALGORITHMS, BUILT_IN
from braidrl.orchestrator.pipeline.dispatcher import Dispatcher
from braidrl.orchestrator.pipeline.records import group_records
from braidrl.orchestrator.pipeline.sink import Sink
from braidrl.orchestrator.train.algo import ALGORITHM_CLASSES, Algorithm, make_algorithm
from braidrl.orchestrator.train.algo.routing import assign_advantages, eligible_traces
from tests.unit.orchestrator.pipeline.test_dispatcher import (
    ManualEnv,
    end_all,
    make_env,
    open_dispatcher,
    settle,
)


class Local(Algorithm[BaseAlgorithmConfig]):
    """Assigns the reward plus 1 as advantage. Its config does not set a barrier."""

    async def score_episode(self, episode: vf.Episode) -> None:
        for trace in eligible_traces([episode]):
            assign_advantages(trace, 1.0 + trace.reward)


def make_local(**source: Any) -> ManualEnv:
    env = make_env(**{"group_size": 3} | source)
    config = BaseAlgorithmConfig()
    env.source, env.algorithm = env.source.model_copy(update={"algo": config}), Local(config)
    return env


def keys(batch: Any) -> list[str]:
    return [finished.key for trace in batch.traces for finished in trace.group.finished.values()]


async def test_an_episode_does_not_wait_for_its_siblings() -> None:
    env = make_local()
    async with open_dispatcher(env, bound=1) as (dispatcher, _):
        collecting = asyncio.create_task(dispatcher.collect(1))
        for key in ("stub-000002/1", "stub-000000/2", "stub-000001/0", "stub-000000/0"):
            assert not collecting.done()
            env.end(key)
            await settle()
        batch = await asyncio.wait_for(collecting, 5.0)
        assert keys(batch) == ["stub-000000/0", "stub-000000/2", "stub-000001/0", "stub-000002/1"]
        groups = [sample.group_id for sample in batch.training_batch.samples]
        assert groups == ["stub-000000", "stub-000000", "stub-000001", "stub-000002"]
        assert sorted(env.open) == ["stub-000000/1", "stub-000001/1", "stub-000001/2", "stub-000002/0"]


async def test_names_and_tasks_do_not_depend_on_the_barrier() -> None:
    alone, together = make_local(group_size=2), make_env()
    async with open_dispatcher(alone), open_dispatcher(together):
        assert alone.started == together.started == [f"stub-00000{n // 2}/{n % 2}" for n in range(4)]


async def test_the_bound_is_kept_in_the_middle_of_a_task() -> None:
    env = make_local()
    async with open_dispatcher(env) as (dispatcher, policy):
        assert env.started == ["stub-000000/0", "stub-000000/1", "stub-000000/2", "stub-000001/0"]
        await end_all(env)
        await dispatcher.collect(1)
        policy.version = 1
        dispatcher.wake()
        await settle()
        assert env.started[4:] == ["stub-000001/1", "stub-000001/2", "stub-000002/0", "stub-000002/1"]


async def test_sources_share_tasks_by_weight_and_not_episodes() -> None:
    local = make_local(name="local", group_size=4)
    other = make_env(name="other", group_size=2)
    async with open_dispatcher(local, other, bound=40, max_concurrent=10**6):
        tasks = {env.name: len({key.split("/")[0] for key in env.started}) for env in (local, other)}
        episodes = Counter(env.name for env in (local, other) for _ in env.started)
    assert 0.3 < tasks["local"] / sum(tasks.values()) < 0.7
    assert episodes["other"] == 2 * tasks["other"]
    assert 4 * (tasks["local"] - 1) < episodes["local"] <= 4 * tasks["local"]


async def test_a_slow_episode_is_cancelled_and_returned_without_its_siblings() -> None:
    env = make_local()
    async with open_dispatcher(env, bound=1) as (dispatcher, policy):
        slow = "stub-000000/1"
        task = dispatcher.groups[0, 1].task
        for step in (1, 2):
            for key in set(env.open) - {slow}:
                env.end(key, policy.version)
            await settle()
            await dispatcher.collect(step)
            await settle()
            policy.version = step
            dispatcher.wake()
            await settle()
        counts = dispatcher.sink.metrics.counts
        assert slow not in env.open
        assert (counts["episodes/cancelled"], counts["groups/returned"]) == (1, 1)
        (again,) = (group for group in dispatcher.groups.values() if group.task is task)
        assert again.index > 0 and list(again.numbers) == [1]
        assert again.key(1) in env.open


async def test_a_checkpoint_lists_the_remaining_episodes_of_a_task() -> None:
    env = make_local()
    async with open_dispatcher(env, bound=1) as (dispatcher, _):
        for key in ("stub-000000/1", "stub-000000/2", "stub-000001/0", "stub-000001/1", "stub-000001/2"):
            env.end(key)
        await settle()
        await dispatcher.collect(1)
        state = json.loads(json.dumps(dispatcher.state_dict()))
    work = [(item["index"], item["task"], item["numbers"]) for item in state["work"]]
    # in flight, buffered, in flight, and two that the staleness bound has held back
    assert work == [(0, 0, [0]), (1, 1, [2]), (2, 2, [0]), (2, 2, [1]), (2, 2, [2])]
    resumed = make_local()
    second = Dispatcher([resumed], Sink(dispatcher.sink.config), lambda: 1, seed=0, max_concurrent=len(work))
    second.sink.resume_at(1)
    second.load_state_dict(state)
    running = asyncio.create_task(second.run())
    await settle()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert resumed.started == [f"stub-00000{index}/{numbers[0]}" for index, _, numbers in work]
    assert second.backlog.next_index == state["next_index"]


async def test_records_are_in_dispatch_order_and_contain_the_outcome() -> None:
    env = make_local()
    async with open_dispatcher(env) as (dispatcher, _):
        for key in ("stub-000001/0", "stub-000000/2", "stub-000000/0", "stub-000000/1"):
            env.end(key)
            await settle()
        records = [record["braid"] for record in group_records(dispatcher.sink.last.groups, 1)]
    assert [(record["key"], record["group"], record["outcome"]) for record in records] == [
        ("stub-000000/0", "stub-000000", "signal"),
        ("stub-000000/1", "stub-000000", "signal"),
        ("stub-000000/2", "stub-000000", "signal"),
        ("stub-000001/0", "stub-000001", "signal"),
    ]


# -- what an algorithm declares


def test_built_in_configs_declare_the_barrier_of_their_algorithm() -> None:
    declared = {
        name: algorithm.config.barrier
        for name, algorithm in ALGORITHMS.items()
        if algorithm.origin == BUILT_IN
    }
    for name, kind in ALGORITHM_CLASSES.items():
        needed = "group"
        if kind.score_batch is not Algorithm.score_batch:
            needed = "batch"
        elif kind.score_group is Algorithm.score_group:
            needed = "episode"
        assert declared.pop(name) == needed
    assert declared == {}
    assert {OPDConfig.barrier, OPSDConfig.barrier, SFTDistillConfig.barrier} == {"episode"}


class Alone(BaseAlgorithmConfig):
    barrier: ClassVar = "episode"


def test_the_barrier_is_that_of_the_widest_hook() -> None:
    assert Local(BaseAlgorithmConfig()).barrier == Local(Alone()).barrier == "episode"

    class Both(Local):
        async def score_group(self, episodes: list[vf.Episode]) -> None: ...

    assert Both(BaseAlgorithmConfig()).barrier == "group"
    with pytest.raises(
        TypeError, match=r"Both overrides score_group, but Alone\.barrier is 'episode'.*= \"group\""
    ):
        Both(Alone())


def test_settings_may_narrow_the_barrier_of_the_class() -> None:
    modes = {
        "group_mean": "group",
        "group_zscore": "group",
        "none": "group",
        "batch_mean": "batch",
        "batch_zscore": "batch",
    }
    for norm, barrier in modes.items():
        assert make_algorithm(GRPOConfig(advantage_norm=norm)).barrier == barrier


def test_needs_siblings_without_a_group_barrier_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"GRPOConfig\.needs_group is True, but Local overrides neither score_group"
    ):
        Local(GRPOConfig())
