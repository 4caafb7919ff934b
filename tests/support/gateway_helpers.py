"""Helpers of the tests of the gateway."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from braidrl.configs.orchestrator import GatewayConfig
from braidrl.orchestrator.engines.pool import Replicas
from braidrl.orchestrator.gateway.server import Gateway
from tests.support.stub_engine import StubEngine

PROMPT = [64, 65, 66]


@dataclass
class Setup:
    gateway: Gateway
    replicas: Replicas
    http: aiohttp.ClientSession

    async def generate(self, session: str | None = None, **params: Any) -> tuple[int, dict[str, Any]]:
        """Send one generation request and return status and body."""
        headers = {"X-Session-ID": session} if session else {}
        sampling = {"temperature": 1.0, "logprobs": 1, "max_tokens": 16} | params
        body = {"model": "tiny", "token_ids": PROMPT, "sampling_params": sampling}
        return await self.post("/inference/v1/generate", body, headers)

    async def post(self, path: str, body: Any, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
        async with self.http.post(self.gateway.url + path, json=body, headers=headers) as response:
            return response.status, await response.json()


@asynccontextmanager
async def open_gateway(
    *engines: StubEngine,
    timeout: float = 10.0,
    context: int = 64,
    key: str | None = None,
    most: int | None = None,
    live: bool = True,
    **settings: Any,
) -> AsyncIterator[Setup]:
    """Run a gateway in front of these engines. `most` is the maximum number of concurrent calls per engine."""
    async with AsyncExitStack() as stack:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        urls = [engine.url for engine in engines]
        replicas = Replicas(urls, live=live, headers=headers, max_inflight=most)
        await replicas.connect(10.0)
        stack.push_async_callback(replicas.close)
        config = GatewayConfig(request_timeout=timeout, **settings)
        gateway = Gateway(config, {"tiny": replicas}, seed=0, context=context, api_key=key)
        await stack.enter_async_context(gateway)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Setup(gateway, replicas, http)
