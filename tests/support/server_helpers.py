"""Helpers of the tests of the inference server."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from braidrl.configs.inference import InferenceConfig
from braidrl.configs.model import ModelConfig
from braidrl.inference.server import serve

DEADLINE = 60.0


def config_of(path: Path, **settings: Any) -> InferenceConfig:
    settings = {"port": 0, "threads": 1, "seq_len": 512, "max_batch_size": 8, **settings}
    return InferenceConfig(model=ModelConfig(path=str(path)), **settings)


@asynccontextmanager
async def running(path: Path, **settings: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """Start a server and yield a session with its address as base."""
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(config_of(path, **settings), ready=address.set_result))
    await asyncio.wait({server, address}, timeout=DEADLINE, return_when=asyncio.FIRST_COMPLETED)
    if server.done():
        server.result()
    timeout = aiohttp.ClientTimeout(total=DEADLINE)
    async with aiohttp.ClientSession(address.result(), timeout=timeout) as session:
        yield session
    server.cancel()
    await asyncio.wait({server}, timeout=DEADLINE)
    assert server.cancelled()


async def address_of(session: aiohttp.ClientSession) -> str:
    """Return the address of a running server as in the config of replicas."""
    async with session.get("/health") as response:
        return str(response.url.with_path("/v1"))


async def post(session: aiohttp.ClientSession, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
    async with session.post(path, json=body, **more) as response:
        return response.status, await response.json()


async def generate(session: aiohttp.ClientSession, token_ids: list[int], **sampling: Any) -> dict[str, Any]:
    sampling = {"ignore_eos": True, **sampling}
    status, answer = await post(
        session, "/inference/v1/generate", {"token_ids": token_ids, "sampling_params": sampling}
    )
    assert status == 200, answer
    return answer


async def metric(session: aiohttp.ClientSession, name: str) -> float:
    async with session.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"braid_{name} "))


async def wait_for_metric(session: aiohttp.ClientSession, name: str, value: float) -> None:
    deadline = time.monotonic() + DEADLINE
    while await metric(session, name) != value:
        assert time.monotonic() < deadline, f"{name} did not become {value} in {DEADLINE} s"
        await asyncio.sleep(0.005)
