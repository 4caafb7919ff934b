"""The chat loop: call the model and run the tools that it calls, until it answers in plain text."""

from contextlib import AsyncExitStack
from typing import Any

from verifiers.v1 import Harness, HarnessConfig, ModelContext, TaskData, Trace
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.errors import HarnessError
from verifiers.v1.harnesses.utils.compaction import CONTEXT_OVERFLOW_MARKERS
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult, Runtime

from braid_chat.connection import Answer, complete
from braid_chat.tools import PythonTools, parse_arguments

DONE = ProgramResult(exit_code=0, stdout="", stderr="")
MAX_UNREADABLE = 3
"""Maximum number of consecutive empty replies that are answered with `UNREADABLE`. The next one ends the loop."""
UNREADABLE = {
    "role": "user",
    "content": "error: your reply holds neither text nor a readable tool call; "
    "write the call again as valid JSON, or answer in text",
}
"""User message sent after an empty reply of a model that has tools. Renderers drop a tool call that they cannot parse,
so an empty reply is usually a malformed call."""


class BraidChatHarnessConfig(HarnessConfig):
    """Config of the chat loop; it has no options besides those of every harness."""

    id: str = "braid-chat"


class BraidChatHarness(Harness[BraidChatHarnessConfig]):
    """Multi-turn chat with tools that starts no process, so hundreds of rollouts can share one event loop.

    Every model call goes through the rollout's interception endpoint, which records it, counts turns and tokens, and
    rejects a call once a limit or a `@stop` of the task is reached. A rejection ends the loop without an error. Tools
    are the `@tool` methods of the task data (`braid_chat.tools`) and the tools of the task's MCP servers. A prompt
    that no longer fits the context ends the loop and marks the trace as truncated.
    """

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False
    OFFERS_TASK_TOOLS = True
    """True: the model can call the `@tool` methods of the task's data class. No harness of verifiers offers them."""

    async def launch(
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: TaskData,
    ) -> ProgramResult:
        system_prompt, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages.extend(message_to_wire(message) for message in prompt or [])
        async with AsyncExitStack() as stack:
            toolbox = await self._toolbox(stack, trace, mcp_urls, data)
            request = {"model": ctx.model, "messages": messages}
            if toolbox.schemas:
                request["tools"] = toolbox.schemas
            unreadable = 0
            while True:
                answer = await complete(endpoint, secret, request)
                if answer.status != 200:
                    return _end(trace, answer)
                choice = answer.body["choices"][0]
                reply = choice["message"]
                messages.append(reply)
                if reply.get("tool_calls"):
                    messages.extend([await toolbox.answer(call) for call in reply["tool_calls"]])
                    unreadable = 0
                elif toolbox.schemas and _is_empty(choice) and unreadable < MAX_UNREADABLE:
                    messages.append(UNREADABLE)
                    unreadable += 1
                else:
                    return DONE

    async def _toolbox(
        self, stack: AsyncExitStack, trace: Trace, mcp_urls: dict[str, str], data: TaskData
    ) -> "Toolbox":
        """Return the task's tools without the disabled ones. `stack` closes the MCP connections."""
        python = PythonTools(data, trace)
        headers = self.config.resolve_mcp_headers(mcp_urls)
        servers = {
            name: {"url": url, "timeout": self.config.tool_timeout, "headers": headers.get(name)}
            for name, url in mcp_urls.items()
        }
        taken = {schema["function"]["name"] for schema in python.schemas}
        schemas, routes, connections = await connect_mcp({"mcpServers": servers}, stack, taken)
        return Toolbox(python, schemas, routes, connections, frozenset(self.config.disabled_tools or ()))


class Toolbox:
    """All tools that one rollout may call."""

    def __init__(
        self,
        python: PythonTools,
        mcp_schemas: list[dict[str, Any]],
        mcp_routes: dict[str, tuple[str, str]],
        mcp_connections: dict[str, Any],
        disabled: frozenset[str],
    ) -> None:
        schemas = [*python.schemas, *mcp_schemas]
        self.schemas = [schema for schema in schemas if schema["function"]["name"] not in disabled]
        self._names = {schema["function"]["name"] for schema in self.schemas}
        self._python = python
        self._routes = mcp_routes
        self._connections = mcp_connections

    async def answer(self, call: dict[str, Any]) -> dict[str, Any]:
        """Run `call` and return the tool message. Mistakes of the model are returned to it as `error: ...`."""
        name = call["function"]["name"]
        try:
            content = await self._run(name, parse_arguments(call["function"]["arguments"]))
        except ValueError as error:
            content = f"error: {error}"
        return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}

    async def _run(self, name: str, arguments: dict[str, Any]) -> str | list[dict[str, Any]]:
        if name not in self._names:
            raise ValueError(f"there is no tool {name!r}; the tools are {sorted(self._names)}")
        if name in self._python:
            return await self._python.call(name, arguments)
        return await call_mcp(self._connections, self._routes, name, arguments)


def _is_empty(choice: dict[str, Any]) -> bool:
    return choice.get("finish_reason") == "stop" and not (choice["message"].get("content") or "").strip()


def _end(trace: Trace, answer: Answer) -> ProgramResult:
    """Return the outcome of a rejected model call. Raises `HarnessError` if the rejection does not end the rollout."""
    if trace.stop_condition is not None:
        return DONE
    if answer.status in (400, 413) and any(
        marker in answer.error.casefold() for marker in CONTEXT_OVERFLOW_MARKERS
    ):
        trace.stop("max_total_tokens")
        return DONE
    raise HarnessError(f"model call failed with status {answer.status}: {answer.error}")
