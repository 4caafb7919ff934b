"""A harness that runs a function of the test (a story), which decides which messages are sent, and in which order."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult, Runtime
from verifiers.v1.semantic import ACP_MODEL_REQUEST_ID_HEADER, SemanticEdge, SemanticEdgeSet

__all__ = ["STORIES", "Chat", "StoryHarness"]

Message = dict[str, Any]


@dataclass
class Chat:
    """Client of the rollout's interception endpoint, passed to a story."""

    endpoint: str
    secret: str
    trace: vf.Trace

    async def ask(
        self, messages: Sequence[Message], tools: Sequence[Message] = (), request: str = ""
    ) -> Message:
        """Return the model's reply as a message for the history. `request` is the name of the call for `link`."""
        status, body = await self.post(messages, tools, request)
        assert status == 200, body
        return body["choices"][0]["message"]

    async def post(
        self, messages: Sequence[Message], tools: Sequence[Message] = (), request: str = ""
    ) -> tuple[int, Any]:
        """Send one model call and return status and body."""
        headers = {"Authorization": f"Bearer {self.secret}"}
        if request:
            headers[ACP_MODEL_REQUEST_ID_HEADER] = request
        body = {"model": "m", "messages": list(messages)} | ({"tools": list(tools)} if tools else {})
        url = f"{self.endpoint}/chat/completions"
        async with aiohttp.ClientSession(headers=headers) as http, http.post(url, json=body) as response:
            return response.status, await response.json()

    def link(self, source: str, target: str, kind: str) -> None:
        """Declare a relation between two calls, like an ACP harness."""
        edge = SemanticEdge(source_request_id=source, target_request_id=target, type=kind)
        self.trace.add_semantic_edges(SemanticEdgeSet(edges=[edge]))


Story = Callable[[Chat], Awaitable[None]]

STORIES: dict[str, Story] = {}
"""Stories by their name in the config of the harness."""


class StoryHarnessConfig(vf.HarnessConfig):
    story: str = ""


class StoryHarness(vf.Harness[StoryHarnessConfig]):
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> ProgramResult:
        await STORIES[self.config.story](Chat(endpoint, secret, trace))
        return ProgramResult(exit_code=0, stdout="", stderr="")
