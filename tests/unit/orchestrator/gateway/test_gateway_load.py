"""The gateway under load: failover, recovery, and calls that wait for a free replica."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_helpers import Setup, open_gateway

from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.orchestrator.engines import pool
from braidrl.orchestrator.engines.policy_watcher import PolicyWatcher
from braidrl.orchestrator.engines.replica import Replica
from braidrl.utils.http import Backoff
from braidrl.utils.run_folder import RunFolder
from tests.support.stub_engine import StubEngine

EAGER: dict[str, Any] = {"health_period": 0.02, "health_timeout": 0.5}
"""Settings with frequent health checks."""


def home_of(setup: Setup, trace: str) -> Replica:
    home = setup.gateway.sessions[trace].replica
    assert home is not None
    return home


async def until(condition: Any, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_call_fails_over_at_once_with_its_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No pause before the retry, and it stays one call of its session: one number, one seed, one list of versions."""
    async with StubEngine(latency=30.0) as one, StubEngine() as two, open_gateway(one, two) as setup:
        setup.gateway.open_session("t", "key", 1.0)
        call = asyncio.create_task(setup.generate("t"))
        await until(lambda: one.requests)
        monkeypatch.delattr(Backoff, "sleep")  # a pause would raise
        await one.__aexit__()
        status, answer = await call
        seeds = [engine.requests[0]["sampling_params"]["seed"] for engine in (one, two)]
        assert status == 200 and seeds[0] == seeds[1] and len(two.requests) == 1
        assert answer["choices"][0]["token_ids"] == two.tokens(seeds[0], 16)
        session = setup.gateway.take_session("t")
        assert session is not None and session.calls == 1 and session.answered() == [[(0, 8)]]
        traffic = setup.gateway.take_traffic()
        assert (traffic.requests, traffic.retries) == (1, 1)
        assert [replica.load for replica in setup.replicas.all] == [0, 0]
        await one.__aenter__()


async def test_calls_of_a_hanging_replica_fail_over() -> None:
    """A hanging replica keeps its connections open, so only the health check detects it. Its calls are stopped."""
    async with (
        StubEngine(latency=30.0) as one,
        StubEngine() as two,
        open_gateway(one, two, **EAGER) as setup,
    ):
        names = [f"t{number}" for number in range(6)]
        for name in names:
            setup.gateway.open_session(name, name, 1.0)
        calls = [asyncio.create_task(setup.generate(name)) for name in names]
        await until(lambda: len(one.requests) == 3)
        one.hangs = True
        async with asyncio.timeout(5.0):
            answers = await asyncio.gather(*calls)
        assert [status for status, _ in answers] == [200] * 6
        assert {home_of(setup, name) for name in names} == {setup.replicas.all[1]}
        await until(lambda: one.cancelled == 3)
        state = setup.replicas.all[0]
        assert state.state == "down" and state.reason == "/health did not answer within 0.5 s"
        one.hangs = False


async def test_a_replica_of_a_frozen_model_takes_requests_after_recovery() -> None:
    async with StubEngine() as one, StubEngine() as two, open_gateway(one, two, live=False, **EAGER) as setup:
        await one.__aexit__()
        await until(lambda: setup.replicas.all[0].state == "down")
        assert (await setup.generate())[0] == 200
        await one.__aenter__()
        await until(lambda: setup.replicas.all[0].state == "open")


async def test_sessions_stay_while_replicas_go_and_come(tmp_path: Path) -> None:
    """Four replicas, forty sessions of twenty calls, and one replica at a time dies and recovers. A session moves only
    when its replica is down, every call is answered once, and recovered replicas get new sessions."""
    engines = [StubEngine(latency=0.01) for _ in range(4)]
    for engine in engines:
        await engine.__aenter__()
    async with open_gateway(*engines, **EAGER) as setup:
        watcher = PolicyWatcher(RunFolder(tmp_path), setup.replicas, update_timeout=5.0, restart_timeout=5.0)
        healing = asyncio.create_task(watcher.run())
        moves = 0

        async def play(name: str) -> None:
            nonlocal moves
            setup.gateway.open_session(name, name, 1.0)
            for _ in range(20):
                before = setup.gateway.sessions[name].replica
                assert (await setup.generate(name))[0] == 200
                if before not in (None, home_of(setup, name)):
                    moves += 1
                    assert before in gone

        gone: list[Replica] = []
        playing = [asyncio.create_task(play(f"t{number}")) for number in range(40)]
        await until(lambda: all(len(engine.requests) > 20 for engine in engines))
        for engine, replica in zip(engines[:2], setup.replicas.all[:2]):
            gone.append(replica)
            await engine.__aexit__()
            await until(lambda replica=replica: replica.state == "down")
            await engine.__aenter__()
            await until(lambda replica=replica: replica.state == "open")
        await asyncio.gather(*playing)
        sessions = [setup.gateway.take_session(f"t{number}") for number in range(40)]
        assert [len(session.answered()) for session in sessions if session] == [20] * 40
        assert 10 <= moves <= 40
        assert [replica.load for replica in setup.replicas.all] == [0] * 4
        assert [replica.sessions for replica in setup.replicas.all] == [0] * 4
        healing.cancel()
        await asyncio.gather(healing, return_exceptions=True)
    for engine in engines:
        await engine.__aexit__()


async def test_idle_sessions_count_in_the_assignment_of_a_new_one() -> None:
    """Sequential sessions, so that no replica has a call in flight when the next session starts."""
    async with StubEngine() as one, StubEngine() as two, open_gateway(one, two) as setup:
        for number in range(6):
            setup.gateway.open_session(f"t{number}", f"key{number}", 1.0)
            await setup.generate(f"t{number}")
        assert [replica.sessions for replica in setup.replicas.all] == [3, 3]


async def test_calls_beyond_the_bound_wait_in_order_of_arrival() -> None:
    async with StubEngine() as one, StubEngine() as two, open_gateway(one, two, most=2) as setup:
        one.hangs = two.hangs = True
        calls = []
        for number in range(12):
            calls.append(asyncio.create_task(setup.generate(seed=number)))
            await until(lambda number=number: setup.gateway.in_flight == number + 1)
        assert [replica.load for replica in setup.replicas.all] == [2, 2]
        assert setup.gateway.waiting == setup.replicas.admission.queued == 8
        one.hangs = two.hangs = False
        assert [status for status, _ in await asyncio.gather(*calls)] == [200] * 12
        assert one.most_at_once == two.most_at_once == 2
        for engine in (one, two):
            order = [request["sampling_params"]["seed"] for request in engine.requests]
            assert order == sorted(order)
        traffic = setup.gateway.take_traffic()
        assert traffic.max_waiting == 8 and traffic.queued > 0
        assert setup.gateway.take_traffic().max_waiting == 0


async def test_a_session_waits_for_its_own_replica_without_blocking_others() -> None:
    async with StubEngine() as one, StubEngine() as two, open_gateway(one, two, most=1) as setup:
        setup.gateway.open_session("t", "key", 1.0)
        await setup.generate("t")
        home, other = home_of(setup, "t"), setup.replicas.all[1]
        assert home is setup.replicas.all[0]
        one.latency = 30.0
        busy = asyncio.create_task(setup.generate("t"))
        await until(lambda: home.load == 1)
        waiting = asyncio.create_task(setup.generate("t"))
        await until(lambda: setup.gateway.waiting == 1)
        status, _ = await setup.generate()  # a later call without a session takes the other replica
        assert status == 200 and other.load == 0
        one.latency = 0.0
        busy.cancel()
        assert (await waiting)[0] == 200 and home_of(setup, "t") is home
        assert len(two.requests) == 1


async def test_a_cancelled_call_leaves_the_queue_and_frees_its_slot() -> None:
    async with StubEngine(latency=30.0) as engine, open_gateway(engine, most=1) as setup:
        first = asyncio.create_task(setup.generate())
        await until(lambda: engine.requests)
        second, third = (asyncio.create_task(setup.generate()) for _ in range(2))
        await until(lambda: setup.gateway.waiting == 2)
        second.cancel()
        await until(lambda: setup.gateway.waiting == 1)
        engine.latency = 0.0
        first.cancel()
        assert (await third)[0] == 200
        assert setup.replicas.all[0].load == 0


async def test_a_slot_assigned_to_a_cancelled_call_goes_to_the_next() -> None:
    async with StubEngine() as engine, open_gateway(engine, most=1) as setup:
        admission, (replica,) = setup.replicas.admission, setup.replicas.all
        assert await admission.acquire(None, 1.0) is replica
        waiting = [asyncio.create_task(admission.acquire(None, 1.0)) for _ in range(2)]
        await until(lambda: len(admission) == 2)
        admission.release(replica)  # assigns the slot to the first call, which has not resumed yet
        waiting[0].cancel()
        assert await waiting[1] is replica
        assert waiting[0].cancelled() and replica.load == 1


async def test_waiting_for_a_replica_counts_towards_the_deadline() -> None:
    async with StubEngine() as engine, open_gateway(engine, most=1, timeout=0.2) as setup:
        await setup.replicas.admission.acquire(None, 1.0)
        status, answer = await setup.generate()
        assert status == 504
        message = answer["error"]["message"]
        assert "1 calls in flight" in message and "orchestrator.gateway.max_inflight_per_replica" in message


async def test_a_version_does_not_wait_for_a_replica_that_is_down(tmp_path: Path) -> None:
    """The others serve it. A recovered replica loads it before it takes requests."""
    async with StubEngine() as one, StubEngine() as two, open_gateway(one, two, **EAGER) as setup:
        watcher = PolicyWatcher(RunFolder(tmp_path), setup.replicas, update_timeout=5.0, restart_timeout=5.0)
        watching = asyncio.create_task(watcher.run())
        await one.__aexit__()
        await until(lambda: setup.replicas.all[0].state == "down")
        RunFolder(tmp_path).weights(1).mkdir(parents=True)
        await watcher.wait_for(1, 2.0)
        assert [replica.version for replica in setup.replicas.all] == [0, 1]
        await one.__aenter__()
        await until(lambda: setup.replicas.all[0].state == "open")
        assert [replica.version for replica in setup.replicas.all] == [1, 1] and one.version == 1
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_replica_that_hangs_during_an_update_does_not_block_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PROBE_TIMEOUT", 0.5)
    async with (
        StubEngine(update_seconds=30.0) as one,
        StubEngine() as two,
        open_gateway(one, two, **EAGER) as setup,
    ):
        updating = [
            asyncio.create_task(setup.replicas.update(replica, tmp_path, 1, 20.0))
            for replica in setup.replicas.all
        ]
        await until(lambda: one.updates)
        one.hangs = True
        async with asyncio.timeout(5.0):
            await asyncio.gather(*updating)
        assert [replica.state for replica in setup.replicas.all] == ["down", "open"]
        one.hangs = False


def test_base_urls_require_a_scheme() -> None:
    block = {"model": {"path": "m"}, "client": {"base_url": ["https://a.example/v1", "http://b:8000/v1"]}}
    assert OrchestratorConfig.model_validate(block).client.base_url == block["client"]["base_url"]
    block["client"] = {"base_url": ["a.example/v1"]}
    with pytest.raises(ValueError, match=r"'a\.example/v1' .* http:// or https://"):
        OrchestratorConfig.model_validate(block)


async def test_the_gateway_raises_the_limit_of_open_files() -> None:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
    async with StubEngine(latency=0.2) as engine, open_gateway(engine) as setup:
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == most
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as setup.http:
            answers = await asyncio.gather(*(setup.generate() for _ in range(300)))
    assert [status for status, _ in answers] == [200] * 300
