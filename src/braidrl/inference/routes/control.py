"""Health, models, metrics, and the routes with which the orchestrator controls a replica."""

import asyncio
from pathlib import Path

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from braidrl.inference.engines.weights import WeightsError
from braidrl.inference.routes.context import CONTEXT, Refused, parse, refuse, reply


class UpdateBody(BaseModel):
    """Request body of a weight update."""

    model_config = ConfigDict(extra="forbid")

    path: str
    """Folder of published weights that this process can read."""
    version: int = Field(ge=0)
    """Policy version to attach to every token sampled from these weights."""


async def health(request: web.Request) -> web.Response:
    """Return 200 once the model is loaded, before that 503."""
    return (
        reply({"status": "ready"})
        if request.app[CONTEXT].loaded
        else refuse(503, "the model is not loaded (yet)")
    )


async def models(request: web.Request) -> web.Response:
    """List the served model with its context limit."""
    config = request.app[CONTEXT].config
    card = {"id": config.model.path, "object": "model", "owned_by": "braid", "max_model_len": config.seq_len}
    return reply({"object": "list", "data": [card]})


async def pause(request: web.Request) -> web.Response:
    """Stop generating. The response is sent after the last token."""
    await asyncio.wrap_future(request.app[CONTEXT].engine.pause())
    return reply({"status": "paused"})


async def resume(request: web.Request) -> web.Response:
    """Continue generating after `pause`."""
    await asyncio.wrap_future(request.app[CONTEXT].engine.resume())
    return reply({"status": "resumed"})


async def sleep(request: web.Request) -> web.Response:
    """Free the caches and stop generating until `wake_up`. The response is sent when the memory is free."""
    await asyncio.wrap_future(request.app[CONTEXT].engine.sleep())
    return reply({"status": "sleeping"})


async def wake_up(request: web.Request) -> web.Response:
    """Continue generating after `sleep`."""
    await asyncio.wrap_future(request.app[CONTEXT].engine.wake_up())
    return reply({"status": "awake"})


async def is_sleeping(request: web.Request) -> web.Response:
    """Return whether the engine is asleep."""
    return reply({"is_sleeping": request.app[CONTEXT].engine.asleep})


async def update_weights(request: web.Request) -> web.Response:
    """Swap the weights in place. The response confirms the version that is now served."""
    body = await parse(request, UpdateBody)
    try:
        return reply(
            {
                "version": await asyncio.wrap_future(
                    request.app[CONTEXT].engine.update_weights(Path(body.path), body.version)
                )
            }
        )
    except WeightsError as error:
        raise Refused(400, str(error)) from error


async def metrics(request: web.Request) -> web.Response:
    """Return metrics in Prometheus text format."""
    engine = request.app[CONTEXT].engine
    stats, scheduler = engine.stats, engine.scheduler
    values = [
        ("requests_running", "gauge", "Requests with a cache slot", len(scheduler.running)),
        ("requests_waiting", "gauge", "Requests waiting for a cache slot", len(scheduler.waiting)),
        ("requests_total", "counter", "Requests accepted", stats.requests),
        ("generated_tokens_total", "counter", "Tokens generated", stats.generated_tokens),
        ("prompt_tokens_total", "counter", "Prompt tokens computed", stats.prompt_tokens),
        ("prefix_cache_hits_total", "counter", "Requests that reused a cached prefix", scheduler.prefix_hits),
        (
            "cache_bytes",
            "gauge",
            "Memory of the keys and values of running sequences",
            scheduler.cache.nbytes,
        ),
        ("weight_version", "gauge", "Served policy version", engine.version),
        ("weight_updates_total", "counter", "Weight updates applied", stats.weight_updates),
        ("busy_seconds_total", "counter", "Seconds spent in forwards and sampling", stats.busy_seconds),
    ]
    lines = [
        f"# HELP braid_{name} {text}.\n# TYPE braid_{name} {kind}\nbraid_{name} {value}\n"
        for name, kind, text, value in values
    ]
    return web.Response(text="".join(lines), content_type="text/plain")
