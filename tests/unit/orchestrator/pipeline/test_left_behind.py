"""Groups that are too slow for the staleness bound: returned, and awaited after `max_returns` times."""

import asyncio

from braidrl.orchestrator.pipeline.dispatcher import Dispatcher
from braidrl.orchestrator.pipeline.groups import Group
from tests.unit.orchestrator.pipeline.test_dispatcher import (
    ManualEnv,
    Policy,
    end_all,
    make_env,
    open_dispatcher,
    settle,
)


def first_task(dispatcher: Dispatcher) -> Group:
    """Return the group in flight of the first task, dispatched first or again."""
    (group,) = (group for group in dispatcher.groups.values() if group.index == 0 or group.returns)
    return group


async def step_without_first_task(dispatcher: Dispatcher, env: ManualEnv, policy: Policy, step: int) -> None:
    """Run a step in which all episodes end except those of the first task."""
    collecting = asyncio.create_task(dispatcher.collect(step))
    while not collecting.done():
        slow = first_task(dispatcher)
        for key in set(env.open) - {slow.key(number) for number in slow.numbers}:
            env.end(key, policy.version)
        await settle()
    policy.version = step
    dispatcher.wake()
    await settle()


async def test_a_batch_waits_for_a_task_returned_max_returns_times() -> None:
    """A task that takes ten steps under a bound of one is returned twice, then a batch waits for it.

    Case 40 of docs/field_cases.md.
    """
    env = make_env()
    async with open_dispatcher(env, bound=1, max_returns=2) as (dispatcher, policy):
        for step in range(1, 4):
            await asyncio.wait_for(step_without_first_task(dispatcher, env, policy, step), 5.0)
        kept = first_task(dispatcher)
        assert kept.returns == 2
        waiting = asyncio.create_task(dispatcher.collect(4))
        for key in set(env.open) - {kept.key(number) for number in kept.numbers}:
            env.end(key, policy.version)
        await settle()
        assert not waiting.done()
        assert f"the batch of step 4 waits for {kept.id}, returned max_returns times" in dispatcher.describe()
        for number, version in kept.versions.items():
            env.end(kept.key(number), version)
        batch = await asyncio.wait_for(waiting, 5.0)
        assert kept in batch.groups
        outcomes = [
            each.outcome
            for each in dispatcher.sink.last.outcomes
            if each.group.index == 0 or each.group.returns
        ]
        assert outcomes == ["stale", "stale", "trained"]
        assert dispatcher.sink.metrics.counts["groups/returned"] == 2


async def test_without_returns_no_group_is_dropped_as_stale() -> None:
    env = make_env()
    async with open_dispatcher(env, bound=1, max_returns=0) as (dispatcher, policy):
        await asyncio.wait_for(step_without_first_task(dispatcher, env, policy, 1), 5.0)
        waiting = asyncio.create_task(dispatcher.collect(2))
        for key in set(env.open) - {"stub-000000/0", "stub-000000/1"}:
            env.end(key, policy.version)
        await settle()
        assert not waiting.done()
        await end_all(env)
        await asyncio.wait_for(waiting, 5.0)
        assert dispatcher.sink.metrics.counts["episodes/cancelled"] == 0
