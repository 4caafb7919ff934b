"""An inference engine that generates nothing: it answers `/inference/v1/generate` with a fixed completion at
once."""

import argparse
import asyncio

from aiohttp import web


def make_app(completion: list[int], max_model_len: int = 4096) -> web.Application:
    """The engine's routes; `completion` (token ids, the last one a stop token) answers every request."""
    entries = [{"token": f"token_id:{token}", "logprob": -1.0, "top_logprobs": []} for token in completion]
    choice = {"index": 0, "token_ids": completion, "finish_reason": "stop", "logprobs": {"content": entries}}
    answer = {"request_id": "stub", "choices": [choice], "weight_versions": [[0, len(completion)]]}

    async def generate(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response(answer)

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "max_model_len": max_model_len}]})

    app = web.Application(client_max_size=1024**3)
    app.add_routes([web.post("/inference/v1/generate", generate), web.get("/v1/models", models)])
    return app


async def serve(completion: list[int]) -> None:
    """Serve on a free port of this machine, print the port, and run until killed."""
    runner = web.AppRunner(make_app(completion), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("completion", type=int, nargs="+", help="token ids of the answer")
    asyncio.run(serve(parser.parse_args().completion))
