"""The buffer: batches in traces and tokens, the staleness bound, and independence of timing if strictly on-policy."""

import asyncio
import hashlib
import random
from collections.abc import Callable
from typing import Any

import pytest
import verifiers.v1 as vf

from braidrl.configs.batches import BatchesConfig
from braidrl.orchestrator.envs.estimates import YieldEstimate
from braidrl.orchestrator.envs.source import FinishedEpisode
from braidrl.orchestrator.pipeline.buffer import CollectedBatch
from braidrl.orchestrator.pipeline.sink import Sink
from tests.support.stub_episodes import join, make_episode, make_failure
from tests.unit.orchestrator.pipeline.test_dispatcher import (
    ManualEnv,
    end_all,
    make_env,
    open_dispatcher,
    settle,
)
from tests.unit.orchestrator.pipeline.test_sink import add, make_config
from tests.unit.orchestrator.pipeline.test_sink import make_env as sink_env

Shape = Callable[[vf.Task, str, int], FinishedEpisode]
"""Function `(task, key, version)` that returns an ended episode."""
LENGTH = 6
"""Number of tokens of a stub trace, prompt included."""


def drawn(key: str, count: int) -> int:
    """Return a number below `count` that depends only on the key."""
    return hashlib.blake2b(key.encode(), digest_size=1).digest()[0] % count


class VariedEnv(ManualEnv):
    """Environment whose episodes fail or differ in reward, length and number of traces, depending only on their key."""

    shape: Shape

    async def run(self, task: vf.Task, key: str) -> FinishedEpisode:
        finished = await super().run(task, key)
        return self.shape(task, key, finished.oldest or 0)


def lengthened(task: vf.Task, key: str, version: int) -> FinishedEpisode:
    """Return an episode of 1 to 6 times the length. One in eight fails, and one group in four has equal rewards."""
    if drawn(key, 8) == 0:
        return make_failure(task, key)
    group, number = key.split("/")
    finished = make_episode(task, 0.5 if drawn(group, 4) == 0 else float(number) % 2, key, version)
    node, extra = finished.episode.traces[0].nodes[1], LENGTH * drawn(key, 6)
    node.token_ids = [*node.token_ids, *[9] * extra]
    node.mask = [*node.mask, *[True] * extra]
    node.logprobs = [*node.logprobs, *[-1.0] * extra]
    return finished


def multiplied(task: vf.Task, key: str, version: int) -> FinishedEpisode:
    """Return an episode with one to five traces."""
    finished = lengthened(task, key, version)
    others = [make_episode(task, float(n), f"{key}.{n}", version) for n in range(drawn(key, 5))]
    return join(finished, *others) if finished.error is None else finished


async def play(shape: Shape, order: int, **settings: Any) -> list[Any]:
    """Run three strictly on-policy steps with a random order of completion.

    Returns:
        For each step, the keys of all episodes started so far and the token ids of the batch.
    """
    env, rng, steps = make_env(group_size=4), random.Random(order), []
    env.__class__, env.shape = VariedEnv, shape
    async with open_dispatcher(env, max_concurrent=rng.choice((3, 7, 64)), **settings) as (
        dispatcher,
        policy,
    ):
        for step in (1, 2, 3):
            collecting = asyncio.create_task(dispatcher.collect(step))
            while not collecting.done():
                for key in rng.sample(sorted(env.open), k=min(len(env.open), rng.randint(1, 3))):
                    env.end(key, policy.version)
                await settle()
            batch = collecting.result()
            steps.append((sorted(env.started), [sample.token_ids.tolist() for sample in samples(batch)]))
            policy.version = step
            dispatcher.wake()
            await settle()
    return steps


def samples(batch: CollectedBatch) -> list[Any]:
    return batch.training_batch.samples


@pytest.mark.parametrize("shape", [lengthened, multiplied])
@pytest.mark.parametrize("size", [{"batch_size": 20}, {"batch_size": None, "token_batch_size": 300}])
@pytest.mark.parametrize("constant", [True, False])
async def test_a_strictly_on_policy_run_does_not_depend_on_the_order_of_completion(
    shape: Shape, size: dict[str, Any], constant: bool
) -> None:
    settings = {"constant_trainer_batch_size": constant, "seq_len": 64, **size}
    first = await play(shape, 0, **settings)
    for order in range(1, 12):
        assert await play(shape, order, **settings) == first
    assert len(first[-1][0]) > 20
    if constant and "token_batch_size" in size:
        assert all(sum(map(len, tokens)) >= 300 for _, tokens in first)


async def test_a_token_batch_has_as_many_traces_as_reach_its_size() -> None:
    config = make_config(batch_size=None, token_batch_size=3 * LENGTH + 1, max_off_policy_steps=1)
    sink, env = Sink(config), sink_env(config)
    await add(sink, env, 0, [1.0, 0.0])
    assert sink.take(1) is None
    await add(sink, env, 1, [1.0, 0.0])
    await add(sink, env, 2, [1.0, 0.0])
    batch = sink.take(1)
    assert batch is not None
    assert [len(sample.token_ids) for sample in samples(batch)] == [LENGTH] * 4
    assert sink.take(2) is None and len(sink.buffer.ready) == 2


async def test_tokens_without_signal_count_only_where_batches_may_be_smaller() -> None:
    for constant in (True, False):
        size = {"batch_size": None, "token_batch_size": 4 * LENGTH, "constant_trainer_batch_size": constant}
        config = make_config(max_off_policy_steps=1, **size)
        sink, env = Sink(config), sink_env(config)
        await add(sink, env, 0, [1.0, 1.0])
        await add(sink, env, 1, [1.0, 0.0])
        batch = sink.take(1)
        assert (batch is None) == constant
        if batch is not None:
            assert [sample.group_id for sample in samples(batch)] == ["stub-000001"] * 2


async def test_the_token_estimate_starts_at_the_context_and_is_then_measured() -> None:
    """Until an episode has ended, a trace counts as long as the context."""
    env = make_env()
    settings = {"batch_size": None, "token_batch_size": 8 * LENGTH, "seq_len": 24}
    env.yield_estimate.tokens_per_trace = 24.0
    async with open_dispatcher(env, **settings) as (dispatcher, policy):
        assert len(env.started) == 2  # 2 x 24 tokens by the initial estimate fill the batch of 48
        collecting = asyncio.create_task(dispatcher.collect(1))
        await end_all(env)
        assert len(env.started) == 8
        await end_all(env)
        assert len(samples(await asyncio.wait_for(collecting, 5.0))) == 8
        policy.version = 1
        dispatcher.wake()
        await settle()
        assert len(env.open) == 8


def test_estimates_change_on_settle_and_decay() -> None:
    estimate = YieldEstimate(tokens_per_trace=100.0)
    estimate.observe(4, 8)
    estimate.measure([10] * 8)
    assert (estimate.traces_per_episode, estimate.tokens_per_trace) == (1.0, 100.0)
    estimate.settle()
    assert (estimate.traces_per_episode, estimate.tokens_per_trace) == (2.0, 10.0)
    for _ in range(8):
        estimate.fade()
        estimate.measure([40] * 8)
    estimate.settle()
    assert estimate.tokens_per_trace == pytest.approx(40.0, rel=0.01)


@pytest.mark.parametrize(("factor", "waits"), [(1.0, True), (1.5, False)])
async def test_oversampling_lets_a_batch_ship_without_the_slowest_group(factor: float, waits: bool) -> None:
    """Ship the three batches that the bound allows while the first group is slow."""
    env = make_env()
    async with open_dispatcher(env, bound=2, oversampling_factor=factor) as (dispatcher, _):
        assert len(env.started) == (12 if waits else 14)
        slow = ["stub-000000/0", "stub-000000/1"]
        for key in set(env.open) - set(slow):
            env.end(key)
        await settle()
        shipped = [await asyncio.wait_for(dispatcher.collect(step), 5.0) for step in (1, 2)]
        last = asyncio.create_task(dispatcher.collect(3))
        await settle()
        assert last.done() != waits
        # with oversampling the slow group was not awaited, became too old and was returned
        assert sorted(env.open) == slow if waits else not env.open
        await end_all(env)
        shipped.append(await asyncio.wait_for(last, 5.0))
        groups = [trace.group.index for batch in shipped for trace in batch.traces]
        assert sorted(groups[::2]) == ([0, 1, 2, 3, 4, 5] if waits else [1, 2, 3, 4, 5, 6])
        assert dispatcher.sink.metrics.counts["groups/returned"] == (0 if waits else 1)


@pytest.mark.parametrize(
    ("bound", "version", "shipped", "room"),
    [(1, 0, 0, 10.0), (1, 0, 1, 6.0), (1, 0, 2, 0.0), (2, 9, 10, 0.0)],
)
def test_oversampling_adds_room_only_while_a_batch_may_be_sampled(
    bound: int, version: int, shipped: int, room: float
) -> None:
    sink = Sink(make_config(max_off_policy_steps=bound, max_steps=10, oversampling_factor=1.5))
    sink.resume_at(shipped)
    assert sink.buffer.room(version) == room


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"batch_size": 8, "token_batch_size": 100},
            r"batch_size \(8 traces\) and token_batch_size \(100 tokens\)",
        ),
        ({"batch_size": None}, "neither batch_size nor token_batch_size is set"),
        ({"oversampling_factor": 1.5, "max_off_policy_steps": 0}, "a batch waits for everything in flight"),
        ({"concurrency": "adaptive", "min_concurrent": 9, "max_concurrent": 8}, "lower min_concurrent"),
    ],
)
def test_contradictions_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BatchesConfig.model_validate(keys)


def test_a_token_batch_loads_back_as_it_was_written() -> None:
    config = BatchesConfig.model_validate({"token_batch_size": 4096})
    assert (config.batch_size, config.token_batch_size) == (None, 4096)
    assert BatchesConfig.model_validate(config.model_dump(exclude_none=True)) == config
    assert BatchesConfig().batch_size == 64
