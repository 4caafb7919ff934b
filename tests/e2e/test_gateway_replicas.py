"""Two real inference servers behind the gateway, one of which is killed while sessions are active."""

import asyncio
import os
import sys
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from braidrl.configs.orchestrator import GatewayConfig
from braidrl.orchestrator.engines.policy_watcher import PolicyWatcher
from braidrl.orchestrator.engines.pool import GENERATE, Replicas
from braidrl.orchestrator.engines.replica import Replica
from braidrl.orchestrator.gateway.server import SESSION_HEADER, Gateway
from braidrl.orchestrator.gateway.sessions import derive_seed
from braidrl.utils.run_folder import RunFolder

pytestmark = pytest.mark.slow

START_SECONDS = 120.0
SESSIONS, CALLS = 24, 3
SAMPLING = {"temperature": 1.0, "max_tokens": 48, "ignore_eos": True, "logprobs": 0}


async def start_server(model: Path, port: int) -> Process:
    """Start `braid inference` in a separate process."""
    flags = {"model.path": model, "port": port, "seq_len": 256, "threads": 1, "max_batch_size": 4}
    arguments = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "braidrl.cli", "inference", *arguments]
    return await asyncio.create_subprocess_exec(*command, env={**os.environ, "OMP_NUM_THREADS": "1"})


@asynccontextmanager
async def servers(model: Path, ports: list[int]) -> AsyncIterator[list[Process]]:
    """Run a server on each port. The caller may modify the list; all processes in it are killed at the end."""
    processes = [await start_server(model, port) for port in ports]
    try:
        yield processes
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


class Setup:
    """Gateway in front of two servers, and an HTTP client."""

    def __init__(self, gateway: Gateway, pool: Replicas, http: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.pool = pool
        self.http = http
        self.homes: dict[str, list[Replica]] = {}
        """Replica of each session after each of its calls."""

    async def call(
        self, url: str, token_ids: list[int], trace: str | None = None, **sampling: int
    ) -> list[int]:
        """Send one call and return the generated tokens."""
        headers = {SESSION_HEADER: trace} if trace else {}
        body = {"model": "tiny", "token_ids": token_ids, "sampling_params": {**SAMPLING, **sampling}}
        async with self.http.post(url + GENERATE, json=body, headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, answer
        return answer["choices"][0]["token_ids"]

    async def play(self, trace: str) -> list[list[int]]:
        """Run the calls of a session, each with all tokens so far as its prompt. Return the prompts, followed by the
        final tokens."""
        self.gateway.open_session(trace, f"key/{trace}", 1.0)
        said = [[1, 2, 3, int(trace)]]
        for _ in range(CALLS):
            said.append([*said[-1], *await self.call(self.gateway.url, said[-1], trace)])
            home = self.gateway.sessions[trace].replica
            assert home is not None
            self.homes.setdefault(trace, []).append(home)
        return said

    async def until_working(self, replica: Replica, calls: int) -> None:
        async with asyncio.timeout(START_SECONDS):
            while replica.load < calls:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def open_gateway(ports: list[int], folder: Path) -> AsyncIterator[Setup]:
    pool = Replicas([f"http://127.0.0.1:{port}/v1" for port in ports], live=True)
    await pool.connect(START_SECONDS)
    watcher = PolicyWatcher(
        RunFolder(folder), pool, update_timeout=START_SECONDS, restart_timeout=START_SECONDS
    )
    healing = asyncio.create_task(watcher.run())
    try:
        async with (
            Gateway(GatewayConfig(), {"tiny": pool}, seed=5, context=256) as gateway,
            aiohttp.ClientSession() as http,
        ):
            yield Setup(gateway, pool, http)
    finally:
        healing.cancel()
        await asyncio.gather(healing, return_exceptions=True)
        await pool.close()


async def test_a_killed_replica_delays_its_sessions_and_loses_nothing(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_ports: list[int]
) -> None:
    """Sessions stay on their replica until it is killed. All of them continue on the other one with their own seeds,
    and are counted once. The restarted server gets sessions again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").symlink_to(tiny_model_dir)
    async with servers(Path("tiny"), free_ports) as processes, open_gateway(free_ports, tmp_path) as setup:
        dead, other = setup.pool.all
        playing = [asyncio.create_task(setup.play(str(number))) for number in range(SESSIONS)]
        await setup.until_working(dead, SESSIONS // 2)
        assert dead.load == other.load == SESSIONS // 2
        while not any(homes[0] is dead for homes in setup.homes.values()):
            await asyncio.sleep(0.005)
        processes[0].kill()
        said = await asyncio.gather(*playing)

        assert setup.gateway.take_traffic().retries >= SESSIONS // 2
        for trace, homes in setup.homes.items():
            session = setup.gateway.take_session(trace)
            assert session is not None and len(session.answered()) == session.calls == CALLS
            assert homes[-1] is other
            assert homes in ([other] * CALLS, [dead] * homes.count(dead) + [other] * homes.count(other))
        assert any(dead in homes for homes in setup.homes.values())
        assert sum(homes == [other] * CALLS for homes in setup.homes.values()) >= SESSIONS // 2
        for trace in range(0, SESSIONS, 6):
            for number, (prompt, whole) in enumerate(zip(said[trace], said[trace][1:])):
                seed = derive_seed(5, f"key/{trace}", number)
                assert [*prompt, *await setup.call(other.url, prompt, seed=seed)] == whole

        assert dead.state == "down"
        await processes[0].wait()
        processes.append(await start_server(Path("tiny"), free_ports[0]))
        async with asyncio.timeout(START_SECONDS):
            while dead.state != "open":
                await setup.pool.changed()
        setup.homes.clear()
        await asyncio.gather(*(setup.play(str(number)) for number in range(8)))
        assert Counter(homes[0] for homes in setup.homes.values()) == {dead: 4, other: 4}


@pytest.fixture
def free_ports() -> list[int]:
    """Two free ports."""
    import socket

    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return [one.getsockname()[1], two.getsockname()[1]]
