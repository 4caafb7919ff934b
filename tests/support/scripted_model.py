"""A model that answers from a script."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from braidrl.utils.tiny_model import byte_tokenizer


class ScriptedModel:
    """Model that answers the calls of one rollout with the replies of a script in order. The last one repeats.

    A reply is a text, a list of tool calls `(name, raw arguments)`, or `(HTTP status, error message)`. For the training
    client it is `(text, finish reason)`."""

    takes_tokens = True
    """True if the server has the route for token ids."""

    def __init__(self, *script: Any) -> None:
        self.script = script
        self.requests: list[dict] = []
        self.headers: list[dict] = []

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        if self.takes_tokens:
            app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()

    async def _next(self, request: web.Request) -> Any:
        self.requests.append(await request.json())
        self.headers.append(dict(request.headers))
        return self.script[min(len(self.requests), len(self.script)) - 1]

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 2000}]})

    async def _chat(self, request: web.Request) -> web.Response:
        reply = await self._next(request)
        if isinstance(reply, tuple):
            return web.json_response({"error": {"message": reply[1]}}, status=reply[0])
        message: dict[str, Any] = {"role": "assistant", "content": reply if isinstance(reply, str) else None}
        if isinstance(reply, list):
            message["tool_calls"] = [
                {
                    "id": f"call_{index}",
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for index, (name, arguments) in enumerate(reply)
            ]
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if isinstance(reply, list) else "stop",
        }
        usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
        answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "usage": usage}
        return web.json_response({**answer, "choices": [choice]})

    async def _generate(self, request: web.Request) -> web.Response:
        text, finish_reason = await self._next(request)
        tokens = byte_tokenizer().encode(text)
        content = [{"token": f"token_id:{token}", "logprob": -0.25, "top_logprobs": []} for token in tokens]
        choice = {
            "index": 0,
            "token_ids": tokens,
            "finish_reason": finish_reason,
            "logprobs": {"content": content},
        }
        return web.json_response({"request_id": "x", "choices": [choice]})
