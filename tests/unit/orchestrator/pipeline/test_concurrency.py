"""Adaptive concurrency: on a simulated engine, with the queue of a real server, and strictly on-policy."""

import asyncio
import random
from pathlib import Path

import pytest

from braidrl.orchestrator.engines.health import engine_queue, gauge
from braidrl.orchestrator.engines.pool import Replicas
from braidrl.orchestrator.pipeline.concurrency import WINDOW, AdaptiveConcurrency, adapt
from tests.support.server_helpers import DEADLINE, address_of, generate, post, running
from tests.unit.orchestrator.pipeline.test_dispatcher import end_all, make_env, open_dispatcher, settle


class Engine:
    """Simulated engine. A call takes a slot for 4 to 12 ticks. Between calls, an episode needs none for 2 to 6."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.rng = random.Random(0)
        self.queue = 0
        self.calls: list[int] = []
        """Remaining ticks of each call."""
        self.alone: list[int] = []
        self.busy = 0

    @property
    def episodes(self) -> int:
        return self.queue + len(self.calls) + len(self.alone)

    def tick(self, limit: int) -> None:
        """Advance by one tick. Episodes make their next call or end if they exceed `limit`, and new ones fill it."""
        self.calls, ended = [left - 1 for left in self.calls if left > 1], self.calls.count(1)
        self.alone, back = [left - 1 for left in self.alone if left > 1], self.alone.count(1)
        self.alone += [self.rng.randint(2, 6) for _ in range(ended)]
        self.queue += max(0, min(back, limit - self.episodes))
        self.queue += max(0, limit - self.episodes)
        started = min(self.queue, self.slots - len(self.calls))
        self.queue -= started
        self.calls += [self.rng.randint(4, 12) for _ in range(started)]
        self.busy += len(self.calls)


def simulate(limits: AdaptiveConcurrency, engine: Engine, ticks: int) -> tuple[float, float, float]:
    """Return mean limit, mean queue and share of busy slots, over the second half of the ticks."""
    seen: list[tuple[int, int]] = []
    for tick in range(ticks):
        if tick == ticks // 2:
            engine.busy = 0
        engine.tick(limits.limit)
        limits.observe(engine.queue, engine.episodes)
        seen.append((limits.limit, engine.queue))
    late = seen[ticks // 2 :]
    share = engine.busy / (engine.slots * (ticks - ticks // 2))
    return sum(limit for limit, _ in late) / len(late), sum(queue for _, queue in late) / len(late), share


def test_it_settles_at_a_busy_engine_with_a_short_queue() -> None:
    """24 episodes that spend a third of their time outside the engine fill 16 slots."""
    engine = Engine(slots=16)
    limit, queue, busy = simulate(AdaptiveConcurrency(4, 256), engine, 4000)
    assert 24 <= limit <= 32
    assert queue < 8
    assert busy > 0.95
    fixed = Engine(slots=16)
    for _ in range(100):
        fixed.tick(256)
    assert fixed.queue > 200


def test_it_grows_when_the_engine_gets_more_slots() -> None:
    limits, engine = AdaptiveConcurrency(4, 256), Engine(slots=16)
    small, _, _ = simulate(limits, engine, 2000)
    engine.slots = 64
    large, _, busy = simulate(limits, engine, 4000)
    assert large > 3 * small
    assert busy > 0.95


def test_it_stays_within_its_bounds() -> None:
    limits = AdaptiveConcurrency(4, 64)
    for _ in range(100 * WINDOW):
        limits.observe(1000, limits.limit)
    assert limits.limit == 4
    for _ in range(100 * WINDOW):
        limits.observe(0, limits.limit)
    assert limits.limit == 64


@pytest.mark.parametrize(
    ("queues", "in_flight", "limit"),
    [
        ([9] * (WINDOW - 1) + [0], 64, 64),  # a burst is not a standing queue
        ([3] * WINDOW, 64, 61),  # by the length of the queue
        ([60] * WINDOW, 64, 48),  # but at most by a quarter per decision
        ([9] * (WINDOW - 1), 64, 64),  # not before the window is full
    ],
)
def test_it_backs_off_from_a_standing_queue(queues: list[int], in_flight: int, limit: int) -> None:
    limits = AdaptiveConcurrency(1, 64)
    for queue in queues:
        limits.observe(queue, in_flight)
    assert limits.limit == limit


def test_it_does_not_grow_while_the_limit_is_unused() -> None:
    limits = AdaptiveConcurrency(1, 64)
    limits.limit = 8
    for _ in range(10 * WINDOW):
        limits.observe(0, 7)
    assert limits.limit == 8


async def test_the_dispatcher_follows_the_limit() -> None:
    env, queue = make_env(), 60

    async def waiting() -> int:
        return queue

    async with open_dispatcher(env, max_concurrent=8, bound=20) as (dispatcher, _):
        limits = AdaptiveConcurrency(2, 8)
        following = asyncio.create_task(
            adapt(limits, waiting, lambda: dispatcher.episodes, dispatcher.set_max_concurrent, seconds=0.0)
        )
        async with asyncio.timeout(10.0):
            while dispatcher.max_concurrent > 2:
                assert (
                    dispatcher.episodes >= dispatcher.max_concurrent
                )  # running episodes are not interrupted
                env.end(next(iter(env.open)))
                await settle()
            await end_all(env)
            assert dispatcher.episodes == 2
            queue = 0
            while dispatcher.max_concurrent < 6:
                await settle()
            await settle()
        assert dispatcher.episodes >= 6
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_strictly_on_policy_run_does_not_depend_on_the_limit() -> None:
    started = []
    for limit in (1, 3, 64):
        env = make_env()
        async with open_dispatcher(env) as (dispatcher, _):
            dispatcher.set_max_concurrent(limit)
            collecting = asyncio.create_task(dispatcher.collect(1))
            while not collecting.done():
                await end_all(env)
            started.append(env.started)
    assert started[0] == started[1] == started[2]


async def test_the_engine_queue_counts_waiting_calls(tiny_model_dir: Path) -> None:
    async with running(tiny_model_dir) as session:
        pool = Replicas([await address_of(session)], live=True)
        await pool.connect(DEADLINE)
        assert await engine_queue(pool) == 0
        await post(session, "/pause")
        calls = [asyncio.create_task(generate(session, [65] * 20, max_tokens=2)) for _ in range(3)]
        async with asyncio.timeout(DEADLINE):
            while await engine_queue(pool) != 3:
                await asyncio.sleep(0.005)
        await post(session, "/resume")
        await asyncio.gather(*calls)
        assert await engine_queue(pool) == 0
        pool.admission.bound = 1
        await pool.admission.acquire(None, DEADLINE)
        waiting = asyncio.create_task(pool.admission.acquire(None, DEADLINE))
        await asyncio.sleep(0)
        assert await engine_queue(pool) == 1  # a call that waits in the gateway for a free replica
        pool.admission.release(pool.all[0])
        await waiting
        pool.set_state(pool.all[0], "down", "restarting")
        assert await engine_queue(pool) is None
        await pool.close()


def test_a_gauge_is_summed_over_its_labels_and_may_be_missing() -> None:
    text = '# TYPE waiting gauge\nwaiting{engine="0"} 2.0\nwaiting{engine="1"} 3.0\nwaiting_time 9\n'
    assert gauge(text, "waiting") == 5
    assert gauge(text, "running") is None
