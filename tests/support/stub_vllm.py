"""A stub of stock vLLM: the routes of a weight update, on a local server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from braidrl.configs.inference import WORKER_EXTENSION
from braidrl.orchestrator.engines.pool import Replicas

DEADLINE = 20.0


@dataclass
class StubVLLM:
    """The routes of a vLLM server that weight updates call, without a model."""

    extension: str = WORKER_EXTENSION
    device: str = "cpu"
    missing: set[str] = field(default_factory=set)
    """Routes that the server does not have."""
    statuses: dict[str, list[int]] = field(default_factory=dict)
    """HTTP statuses with which the next calls of a route fail."""
    acknowledges: bool = True
    model: str = "model"
    """Name of the served base model."""
    adapters: list[str] = field(default_factory=list)
    """Names of loaded adapters."""
    version: str = "default"
    calls: list[tuple[str, Any]] = field(default_factory=list)
    """Route and body of each update call, in order."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def transfer(self, path: str, body: Any) -> None:
        """Handle a route of the weight transfer. Does nothing unless overridden."""

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.path
        if path in self.missing:
            return web.Response(status=404)
        answers = {
            "/health": {},
            "/v1/models": {"data": [{"id": name} for name in (self.model, *self.adapters)]},
            "/version": {"version": "0.25.0"},
            "/weight_info": {"weight_version": self.version},
            "/server_info": {
                "vllm_config": {
                    "parallel_config": {"worker_extension_cls": self.extension},
                    "device_config": {"device": self.device},
                }
            },
            "/reset_prefix_cache": {"success": True},
            "/get_world_size": {"world_size": 2},
        }
        if request.method == "POST":
            body = await request.read()
            self.calls.append((str(request.rel_url), msgspec.json.decode(body) if body else None))
            if self.statuses.get(path):
                return web.json_response({"error": "told to"}, status=self.statuses[path].pop(0))
            if path == "/v1/load_lora_adapter":
                self.adapters.append(self.calls[-1][1]["lora_name"])
            if path == "/update_weight_version" and self.acknowledges:
                self.version = self.calls[-1][1]["new_version"]
            await self.transfer(path, self.calls[-1][1])
        return web.json_response(answers.get(path, {}))


@asynccontextmanager
async def pool_of(stub: StubVLLM) -> AsyncIterator[Replicas]:
    async with stub.running() as url:
        pool = Replicas([url], live=True)
        try:
            await pool.connect(DEADLINE)
            yield pool
        finally:
            await pool.close()
