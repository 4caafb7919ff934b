"""An inference server that restarts at another address, which the orchestrator reads from the address file."""

import asyncio
from pathlib import Path

from braidrl.orchestrator.engines.policy_watcher import PolicyWatcher
from braidrl.orchestrator.engines.pool import Replicas
from braidrl.utils.publish import publish_bytes
from braidrl.utils.run_folder import RunFolder
from tests.support.stub_engine import StubEngine


async def connected(folder: Path, *engines: StubEngine) -> Replicas:
    replicas = Replicas([engine.url for engine in engines], live=True, address_file=folder / "addresses")
    await replicas.connect(10.0)
    return replicas


def move(folder: Path, *engines: StubEngine) -> None:
    publish_bytes(folder / "addresses", "\n".join(engine.url for engine in engines).encode())


async def test_a_replica_that_is_down_is_found_at_its_new_address(tmp_path: Path) -> None:
    async with StubEngine() as stays, StubEngine() as there:
        async with StubEngine() as here:
            replicas = await connected(tmp_path, stays, here)
        watcher = PolicyWatcher(RunFolder(tmp_path), replicas, update_timeout=5.0, restart_timeout=5.0)
        task = asyncio.create_task(watcher.run())
        moved = replicas.all[1]
        replicas.lost(moved, "refused a connection")
        move(tmp_path, stays, there)
        async with asyncio.timeout(5.0):
            while moved.state != "open":
                await replicas.changed()
        assert [f"{replica.url}/v1" for replica in replicas.all] == [stays.url, there.url]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await replicas.close()


async def test_an_update_follows_a_replica_that_moves_meanwhile(tmp_path: Path) -> None:
    async with StubEngine() as there:
        async with StubEngine() as here:
            replicas = await connected(tmp_path, here)
        update = asyncio.create_task(replicas.update(replicas.all[0], tmp_path / "weights", 1, 5.0))
        async with asyncio.timeout(5.0):
            while replicas.all[0].state != "updating":
                await replicas.changed()
        move(tmp_path, there)
        await update
        assert there.version == 1
        await replicas.close()
