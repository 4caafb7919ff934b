"""The dispatcher: order of dispatch, the staleness bound, and cancellation of stale work."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf

from braidrl.configs.orchestrator import GatewayConfig
from braidrl.orchestrator.envs.source import FinishedEpisode, TrainEnv
from braidrl.orchestrator.gateway.server import Gateway
from braidrl.orchestrator.heartbeat import heartbeat
from braidrl.orchestrator.pipeline.dispatcher import Dispatcher
from braidrl.orchestrator.pipeline.sink import Sink
from tests.support.stub_episodes import make_episode, make_failure
from tests.support.stub_trainer import orchestrator_config


class ManualEnv(TrainEnv):
    """Environment whose episodes end when a test calls `end`. Rewards alternate, so that every group has signal."""

    started: list[str]
    open: dict[str, asyncio.Future]
    rewards: dict[str, tuple[float, float]]
    """Rewards of groups that differ from the default (1.0, 0.0)."""
    broken: set[str]
    """Groups whose episodes fail."""

    async def run(self, task: vf.Task, key: str) -> FinishedEpisode:
        self.started.append(key)
        future = self.open[key] = asyncio.get_running_loop().create_future()
        try:
            version = await future
        finally:
            del self.open[key]
        group, number = key.split("/")
        if group in self.broken:
            return make_failure(task, key)
        return make_episode(task, self.rewards.get(group, (1.0, 0.0))[int(number) % 2], key, version)

    def end(self, key: str, version: int = 0) -> None:
        self.open[key].set_result(version)


def make_env(**source: Any) -> ManualEnv:
    config = orchestrator_config(Path("model"), Path("run"), "http://127.0.0.1:9/v1")
    env = ManualEnv(
        config.train.source[0].model_copy(update={"group_size": 2} | source),
        config,
        Gateway(GatewayConfig(), {}, seed=0, context=64),
    )
    env.started, env.open, env.rewards, env.broken = [], {}, {}, set()
    return env


class Policy:
    version = 0


@asynccontextmanager
async def open_dispatcher(
    *envs: ManualEnv, bound: int = 0, max_concurrent: int = 64, seed: int = 0, **settings: Any
) -> AsyncIterator[tuple[Dispatcher, Policy]]:
    """Run a dispatcher with batches of four traces, unless `settings` override it."""
    settings = {"batch_size": 4, "max_steps": 100} | settings
    config = orchestrator_config(
        Path("model"), Path("run"), "http://url", max_off_policy_steps=bound, **settings
    )
    policy = Policy()
    dispatcher = Dispatcher(
        list(envs), Sink(config), lambda: policy.version, seed=seed, max_concurrent=max_concurrent
    )
    running = asyncio.create_task(dispatcher.run())
    await settle()
    yield dispatcher, policy
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def settle() -> None:
    """Run the event loop until nothing is ready."""
    for _ in range(20):
        await asyncio.sleep(0)


async def end_all(env: ManualEnv, version: int = 0) -> None:
    for key in list(env.open):
        env.end(key, version)
    await settle()


@pytest.mark.parametrize(("bound", "groups"), [(0, 2), (1, 4), (2, 6)])
async def test_dispatch_runs_ahead_by_the_bound_and_no_further(bound: int, groups: int) -> None:
    env = make_env()
    async with open_dispatcher(env, bound=bound) as (dispatcher, policy):
        assert len(env.started) == 2 * groups
        await end_all(env)
        assert len(env.started) == 2 * groups
        await dispatcher.collect(1)
        await settle()
        assert len(env.started) == 2 * groups  # shipping does not free room, only a new policy version does
        policy.version = 1
        dispatcher.wake()
        await settle()
        assert len(env.started) == 2 * groups + 4


async def test_concurrency_is_bounded() -> None:
    env = make_env()
    async with open_dispatcher(env, max_concurrent=3) as (_, _):
        assert len(env.open) == 3
        env.end("stub-000000/0")
        await settle()
        assert sorted(env.open) == ["stub-000000/1", "stub-000001/0", "stub-000001/1"]


async def test_groups_without_signal_are_replaced_by_the_next_tasks() -> None:
    env = make_env()
    env.rewards = {"stub-000000": (1.0, 1.0)}
    async with open_dispatcher(env) as (dispatcher, _):
        collecting = asyncio.create_task(dispatcher.collect(1))
        await end_all(env)
        assert list(env.open) == ["stub-000002/0", "stub-000002/1"]
        await end_all(env)
        batch = await asyncio.wait_for(collecting, 5.0)
        assert [trace.group.index for trace in batch.traces] == [1, 1, 2, 2]


async def test_a_group_of_failed_episodes_is_replaced_too() -> None:
    env = make_env()
    env.broken = {"stub-000001"}
    async with open_dispatcher(env) as (dispatcher, _):
        collecting = asyncio.create_task(dispatcher.collect(1))
        await end_all(env)
        await end_all(env)
        batch = await asyncio.wait_for(collecting, 5.0)
        assert [trace.group.index for trace in batch.traces] == [0, 0, 2, 2]
        assert dispatcher.idle
        assert not dispatcher.backlog.queue  # a failed task is not retried


async def test_sources_are_chosen_by_weight_and_by_the_seed_alone() -> None:
    heavy, light = make_env(name="heavy", weight=3.0), make_env(name="light", weight=1.0)

    def choices(seed: int) -> list[str]:
        config = orchestrator_config(Path("model"), Path("run"), "http://url")
        dispatcher = Dispatcher([heavy, light], Sink(config), lambda: 0, seed=seed, max_concurrent=1)
        return [dispatcher.backlog.choose_env(index).name for index in range(2000)]

    first = choices(0)
    assert first == choices(0)
    assert first != choices(1)
    assert 0.7 < Counter(first)["heavy"] / len(first) < 0.8


async def test_a_strictly_on_policy_batch_waits_for_everything_in_flight() -> None:
    env = make_env()
    async with open_dispatcher(env) as (dispatcher, _):
        collecting = asyncio.create_task(dispatcher.collect(1))
        env.end("stub-000001/1")
        env.end("stub-000001/0")
        env.end("stub-000000/1")
        await settle()
        assert not collecting.done()
        env.end("stub-000000/0")
        batch = await asyncio.wait_for(collecting, 5.0)
        assert [trace.group.id for trace in batch.traces] == ["stub-000000"] * 2 + ["stub-000001"] * 2


async def test_a_slow_group_is_cancelled_counted_and_its_task_dispatched_first() -> None:
    env = make_env()
    async with open_dispatcher(env, bound=1) as (dispatcher, policy):
        slow = [key for key in env.open if key.startswith("stub-000000")]
        task = dispatcher.groups[0, 0].task
        for step in (1, 2):
            for key in set(env.open) - set(slow):
                env.end(key, policy.version)
            await settle()
            await dispatcher.collect(step)
            await settle()
            policy.version = step
            dispatcher.wake()
            await settle()
        assert not set(slow) & set(env.open)  # v0 would be two versions old in step 3
        assert dispatcher.sink.metrics.counts["episodes/cancelled"] == 2
        assert dispatcher.sink.metrics.counts["groups/returned"] == 1
        again = [group for group in dispatcher.groups.values() if group.task is task]
        assert len(again) == 1
        assert again[0].index > 0
        assert again[0].oldest() is not None


async def test_state_keeps_the_work_in_flight_in_order() -> None:
    env = make_env()
    async with open_dispatcher(env, bound=1) as (dispatcher, _):
        env.end("stub-000001/0")
        env.end("stub-000001/1")
        await settle()
        state = dispatcher.state_dict()
    assert [item["index"] for item in state["work"]] == [0, 1, 2, 3]
    assert [item["task"] for item in state["work"]] == [0, 1, 2, 3]
    resumed = make_env()
    config = orchestrator_config(Path("model"), Path("run"), "http://url", batch_size=4)
    second = Dispatcher([resumed], Sink(config), lambda: 0, seed=0, max_concurrent=64)
    second.load_state_dict(state)
    running = asyncio.create_task(second.run())
    await settle()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert resumed.started == [f"stub-00000{group}/{number}" for group in (0, 1) for number in (0, 1)]
    assert second.backlog.next_index == state["next_index"]


async def test_the_heartbeat_logs_the_status_while_there_is_no_progress(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="braidrl")
    env = make_env()
    async with open_dispatcher(env) as (dispatcher, _):
        beating = asyncio.create_task(
            heartbeat(lambda: dispatcher.progress, dispatcher.describe, lambda: "3 model calls", seconds=0.1)
        )
        await asyncio.sleep(0.25)
        assert any(
            "episodes in flight: 4 of stub" in line and "3 model calls" in line for line in caplog.messages
        )
        await end_all(env)
        await asyncio.sleep(0.25)
        beating.cancel()
    assert "waits for the trainer's next version" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("limit", "state"),
    [(3, "no more than 3 episodes at once"), (64, "waits for episodes to end")],
)
async def test_the_status_names_the_reason_for_waiting(limit: int, state: str) -> None:
    async with open_dispatcher(make_env(), max_concurrent=limit) as (dispatcher, _):
        status = dispatcher.describe()
        assert status.endswith(state)
        assert (
            "(oldest stub-000000/0, 0 s); 0 of 4 traces buffered for the next batch, at most 4 may be buffered or in "
            "flight with policy v0" in status
        )


async def test_an_unexpected_error_ends_the_dispatcher() -> None:
    env = make_env()
    config = orchestrator_config(Path("model"), Path("run"), "http://url", batch_size=4)
    dispatcher = Dispatcher([env], Sink(config), lambda: 0, seed=0, max_concurrent=64)
    running = asyncio.create_task(dispatcher.run())
    await settle()
    env.open["stub-000000/0"].set_exception(RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(running, 5.0)
    assert env.open == {}
