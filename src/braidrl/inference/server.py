"""Inference process: an HTTP server for one model."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable

from aiohttp import web

from braidrl.configs.inference import InferenceConfig
from braidrl.inference.engines import vllm
from braidrl.inference.engines.torch import TorchEngine
from braidrl.inference.routes import chat, control, generate
from braidrl.inference.routes.context import CONTEXT, Context, errors
from braidrl.utils.http import read_api_key
from braidrl.utils.process import allow_open_files, freeze_gc

logger = logging.getLogger(__name__)

LARGEST_BODY = 64 * 2**20
"""Maximum size of a request body in bytes. A token id takes up to 8."""
SHUTDOWN_TIMEOUT = 2.0
"""Seconds that open connections have to finish after the engine has ended."""


async def serve(config: InferenceConfig, *, ready: Callable[[str], None] | None = None) -> None:
    """Listen on `host:port` (0: a free port), load the model, call `ready(base_url)`, serve until cancelled.

    `/health` returns 503 until the model is loaded. Raises the engine's exception if it fails.
    """
    allow_open_files()
    engine = TorchEngine(config)
    context = Context(config, engine, read_api_key(config.api_key_var, "inference"))
    runner = web.AppRunner(
        build_app(context), handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, config.host, config.port).start()
        # Not concurrently with the engine's loading: the lazy imports of transformers are not thread-safe.
        context.tokenizer = await asyncio.to_thread(_load_tokenizer, config)
        engine.start()
        await asyncio.shield(asyncio.wrap_future(engine.loaded))
        host, port = runner.addresses[0][:2]
        base_url = f"http://{host}:{port}"
        logger.info("inference ready at %s", base_url)
        if ready is not None:
            ready(base_url)
        await asyncio.shield(asyncio.wrap_future(engine.ended))
    finally:
        await asyncio.to_thread(engine.close)
        await runner.cleanup()


def run(config: InferenceConfig) -> None:
    """Run `braid inference` until SIGINT or SIGTERM. With `engine = "vllm"`, vLLM's server replaces this process."""
    if config.engine == "vllm":
        vllm.run(config)

    async def main() -> None:
        task = asyncio.ensure_future(serve(config, ready=lambda _: freeze_gc()))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())


def build_app(context: Context) -> web.Application:
    """Create the application with all routes."""
    app = web.Application(middlewares=[errors], client_max_size=LARGEST_BODY)
    app[CONTEXT] = context
    app.router.add_get("/health", control.health)
    app.router.add_get("/v1/models", control.models)
    app.router.add_get("/metrics", control.metrics)
    app.router.add_post("/pause", control.pause)
    app.router.add_post("/resume", control.resume)
    app.router.add_post("/sleep", control.sleep)
    app.router.add_post("/wake_up", control.wake_up)
    app.router.add_get("/is_sleeping", control.is_sleeping)
    app.router.add_post("/update_weights", control.update_weights)
    app.router.add_post("/inference/v1/generate", generate.generate)
    app.router.add_post("/v1/chat/completions", chat.chat)
    return app


def _load_tokenizer(config: InferenceConfig):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(config.model.path, trust_remote_code=config.model.trust_remote_code)
