"""The policy watcher between the trainer's weights and the replicas."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from braidrl.orchestrator.engines.policy_watcher import PolicyWatcher
from braidrl.orchestrator.engines.pool import ReplicaError, Replicas
from braidrl.utils.run_folder import RunFolder
from tests.support.stub_engine import StubEngine


@asynccontextmanager
async def open_watcher(
    path: Path, *engines: StubEngine, start: int = 0, **options: Any
) -> AsyncIterator[PolicyWatcher]:
    """Run a policy watcher."""
    async with AsyncExitStack() as stack:
        replicas = Replicas([engine.url for engine in engines], live=True)
        await replicas.connect(10.0, start)
        stack.push_async_callback(replicas.close)
        options = {"update_timeout": 5.0, "restart_timeout": 5.0} | options
        watcher = PolicyWatcher(RunFolder(path), replicas, **options)
        await watcher.start(start)
        running = asyncio.create_task(watcher.run())
        yield watcher
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def publish(path: Path, *versions: int) -> None:
    for version in versions:
        RunFolder(path).weights(version).mkdir(parents=True)


async def test_versions_are_applied_in_order_to_every_replica(tmp_path: Path) -> None:
    async with StubEngine() as one, StubEngine() as two, open_watcher(tmp_path, one, two) as watcher:
        for version in (1, 2, 3):
            publish(tmp_path, version)
            await watcher.wait_for(version, 5.0)
        assert watcher.version == 3
    for engine in (one, two):
        assert [update["version"] for update in engine.updates] == [1, 2, 3]
        assert Path(engine.updates[0]["path"]) == RunFolder(tmp_path).weights(1).resolve()


async def test_a_slow_loader_sees_one_update_at_a_time_and_then_the_newest(tmp_path: Path) -> None:
    async with StubEngine(update_seconds=0.3) as engine, open_watcher(tmp_path, engine) as watcher:
        publish(tmp_path, 1)
        await asyncio.sleep(0.15)
        publish(tmp_path, 2, 3)
        assert watcher.version == 0
        await watcher.wait_for(3, 5.0)
    assert [update["version"] for update in engine.updates] == [1, 3]
    assert engine.overlapping == 1


async def test_a_version_in_must_stop_is_not_skipped(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    async def look(version: int) -> None:
        if version == 2:
            publish(tmp_path, 12)
        await asyncio.sleep(0.2)
        seen.append((version, engine.version))

    async with StubEngine() as engine:
        publish(tmp_path, 1, 2, 3)
        options = {"on_version": look, "must_stop": lambda version: version == 2}
        async with open_watcher(tmp_path, engine, **options) as watcher:
            await watcher.wait_for(12, 5.0)
            await watcher.wait_visited(12)
    # later versions waited, and v3 was not applied afterwards
    assert seen == [(0, 0), (2, 2), (12, 12)]


async def test_weights_are_deleted_only_after_the_acknowledgement(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.checkpoint(2).mkdir(parents=True)
    async with StubEngine(update_seconds=0.2) as engine, open_watcher(tmp_path, engine) as watcher:
        publish(tmp_path, 1)
        await watcher.wait_for(1, 5.0)
        publish(tmp_path, 2)
        await asyncio.sleep(0.1)
        assert run.published("weights") == [1, 2]
        await watcher.wait_visited(2)
        for version in (3, 4):
            publish(tmp_path, version)
            await watcher.wait_visited(version)
        assert run.published("weights") == [2, 4]


async def test_a_wrong_acknowledgement_ends_the_run(tmp_path: Path) -> None:
    async with StubEngine(acknowledges=7) as engine:
        replicas = Replicas([engine.url], live=True)
        await replicas.connect(5.0)
        watcher = PolicyWatcher(RunFolder(tmp_path), replicas, update_timeout=5.0, restart_timeout=5.0)
        publish(tmp_path, 1)
        with pytest.raises(ReplicaError, match="acknowledged 7, but v1 was sent"):
            await watcher.start(1)
        assert replicas.all[0].state == "updating"
        await replicas.close()


async def test_waiting_has_a_deadline_that_names_its_object(tmp_path: Path) -> None:
    async with StubEngine() as engine, open_watcher(tmp_path, engine) as watcher:
        with pytest.raises(TimeoutError, match=r"waited 0\.1 s for policy v1, but the replicas serve v0"):
            await watcher.wait_for(1, 0.1)


async def test_a_replica_that_restarts_gets_the_current_version_before_any_request(tmp_path: Path) -> None:
    async with StubEngine() as engine, open_watcher(tmp_path, engine) as watcher:
        publish(tmp_path, 1)
        await watcher.wait_for(1, 5.0)
        replica = watcher.replicas.all[0]
        await engine.__aexit__()
        engine.version = 0
        watcher.replicas.lost(replica, "refused a connection")
        assert replica.state == "down"
        await engine.__aenter__()
        assert await watcher.replicas.admission.acquire(None, 5.0) is replica
        assert engine.version == 1
        assert [update["version"] for update in engine.updates] == [1, 1]


async def test_an_update_waits_for_a_replica_that_restarts(tmp_path: Path) -> None:
    async with StubEngine() as engine, open_watcher(tmp_path, engine) as watcher:
        await engine.__aexit__()
        publish(tmp_path, 1)
        await asyncio.sleep(0.3)
        assert watcher.version == 0
        await engine.__aenter__()
        await watcher.wait_for(1, 5.0)


async def test_a_resumed_run_applies_its_version_first(tmp_path: Path) -> None:
    publish(tmp_path, 2)
    async with StubEngine() as engine, open_watcher(tmp_path, engine, start=2) as watcher:
        assert (watcher.version, engine.version) == (2, 2)
        assert watcher.replicas.all[0].state == "open"
