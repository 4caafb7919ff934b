"""Stub inference engines that answer `/inference/v1/generate` with a fixed completion after `--latency` seconds."""

import argparse
import asyncio
import time

import msgspec
from aiohttp import web


def make_app(completion: list[int], max_model_len: int = 4096, latency: float = 0.0) -> web.Application:
    """Return an engine that answers every request with `completion` (token ids that end with a stop token).

    The `request_id` of an answer is the time in seconds that the engine took for the request.
    """
    entries = [{"token": f"token_id:{token}", "logprob": -1.0, "top_logprobs": []} for token in completion]
    choice = {"index": 0, "token_ids": completion, "finish_reason": "stop", "logprobs": {"content": entries}}
    answer = {"choices": [choice], "weight_versions": [[0, len(completion)]], "request_id": "%.6f"}
    template = msgspec.json.encode(answer)

    async def generate(request: web.Request) -> web.Response:
        started = time.perf_counter()
        await request.read()
        if latency:
            await asyncio.sleep(latency)
        body = template % (time.perf_counter() - started)
        return web.Response(body=body, content_type="application/json")

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "max_model_len": max_model_len}]})

    async def health(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(client_max_size=1024**3)
    routes = [web.get("/health", health), web.get("/v1/models", models)]
    app.add_routes([web.post("/inference/v1/generate", generate), *routes])
    return app


async def serve(completion: list[int], latency: float, count: int) -> None:
    """Serve on `count` free local ports, print each port, and run until killed."""
    for _ in range(count):
        runner = web.AppRunner(make_app(completion, latency=latency), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
        print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("completion", type=int, nargs="+", help="token ids of the completion")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds per answer")
    parser.add_argument("--count", type=int, default=1, help="number of engines, each on its own port")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.completion, arguments.latency, arguments.count))
