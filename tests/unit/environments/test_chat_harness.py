"""The in-process chat loop with verifiers' interception server and scripted models."""

import asyncio
import json

import pytest
import verifiers.v1 as vf
from pydantic import Field
from renderers import config_from_name
from verifiers.v1.types import SamplingConfig

from braid_chat import connection, tool
from braid_chat.tools import PythonTools
from braidrl.orchestrator.train.algo.routing import assign_advantages
from braidrl.orchestrator.train.samples import flatten_trace
from braidrl.utils.tiny_model import byte_tokenizer
from tests.support.episodes import trace as make_trace
from tests.support.scripted_model import ScriptedModel


class Shop(vf.State):
    orders: list[str] = Field(default_factory=list)


class ShopData(vf.TaskData):
    prices: dict[str, int] = Field(default_factory=lambda: {"tea": 3})

    @tool
    def price(self, item: str) -> int:
        """The price of an item."""
        return self.prices[item]

    @tool
    async def order(self, item: str, state: Shop, count: int = 1) -> str:
        """Order an item."""
        await asyncio.sleep(0)
        state.orders += [item] * count
        return "ordered"


class ShopTask(vf.Task[ShopData, Shop]):
    @vf.stop
    async def sold_out(self, trace: vf.Trace) -> bool:
        return len(trace.state.orders) >= 3

    @vf.reward
    async def orders(self, trace: vf.Trace) -> float:
        return float(len(trace.state.orders))


def shop(**keys) -> ShopTask:
    return ShopTask(ShopData(**{"prompt": "Buy tea.", **keys}))


def agent_config(base_url: str, **keys) -> vf.AgentConfig:
    client = vf.EvalClientConfig(base_url=base_url, api_key_var="NO_SUCH_KEY")
    return vf.AgentConfig(
        **{
            "harness": {"id": "braid-chat"},
            "runtime": {"type": "subprocess"},
            "model": "m",
            "client": client,
            **keys,
        }
    )


async def play(model: ScriptedModel, task: vf.Task | None = None, **keys) -> vf.Trace:
    async with model.serve() as base_url:
        return await vf.Agent(agent_config(base_url, **keys)).run(task or shop())


def tool_results(trace: vf.Trace) -> list[str]:
    return [message.content for message in trace.tool_messages]


async def test_one_turn() -> None:
    model = ScriptedModel("Done.")
    trace = await play(model, shop(system_prompt="Be brief."))
    assert trace.ok and trace.num_turns == 1 and trace.last_reply == "Done."
    system, user = model.requests[0]["messages"]
    assert system == {"role": "system", "content": "Be brief."}
    assert user == {"role": "user", "content": "Buy tea."}


async def test_tools_run_in_process_and_share_the_state() -> None:
    model = ScriptedModel(
        [("price", '{"item": "tea"}'), ("order", '{"item": "tea", "count": 2}')], "Two teas, please."
    )
    trace = await play(model)
    assert trace.ok and trace.num_turns == 2 and trace.reward == 2.0
    assert tool_results(trace) == ["3", "ordered"]
    assert trace.num_branches == 1
    assert [message["role"] for message in model.requests[1]["messages"]] == [
        "user",
        "assistant",
        "tool",
        "tool",
    ]


def test_the_model_sees_names_docstrings_and_parameters() -> None:
    schemas = {
        schema["function"]["name"]: schema["function"]
        for schema in PythonTools(ShopData(), make_trace()).schemas
    }
    assert schemas["order"] == {
        "name": "order",
        "description": "Order an item.",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string"}, "count": {"type": "integer", "default": 1}},
            "required": ["item"],
            "additionalProperties": False,
        },
    }


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("price", '{"item": "te'), "not valid JSON"),
        (("price", json.dumps('{"item": "tea"}')), "must be a JSON object, not str"),
        (("price", "[]"), "must be a JSON object, not list"),
        (("price", "{}"), "item: Field required"),
        (("price", '{"item": "tea", "state": 1}'), "state: Extra inputs"),
        (("price", '{"item": "gold"}'), "KeyError: 'gold'"),
        (("steal", "{}"), "there is no tool 'steal'; the tools are ['order', 'price']"),
    ],
)
async def test_a_wrong_call_is_answered_with_an_error_and_the_rollout_goes_on(call, words) -> None:
    trace = await play(ScriptedModel([call], "Sorry."))
    assert trace.ok and trace.last_reply == "Sorry."
    (result,) = tool_results(trace)
    assert result.startswith("error: ") and words in result


async def test_disabled_tools_are_not_offered() -> None:
    model = ScriptedModel([("order", "{}")], "Pity.")
    trace = await play(model, harness={"id": "braid-chat", "disabled_tools": ["order"]})
    assert [entry["function"]["name"] for entry in model.requests[0]["tools"]] == ["price"]
    assert "no tool 'order'" in tool_results(trace)[0]


async def test_a_limit_ends_the_loop_cleanly() -> None:
    trace = await play(ScriptedModel([("price", '{"item": "tea"}')]), max_turns=3)
    assert trace.ok and trace.stop_condition == "max_turns"
    assert trace.num_turns == 3 and trace.is_truncated


async def test_a_stop_of_the_task_ends_the_loop_cleanly() -> None:
    trace = await play(ScriptedModel([("order", '{"item": "tea", "count": 3}')]))
    assert trace.ok and trace.stop_condition == "sold_out"
    assert trace.num_turns == 1 and trace.reward == 3.0


async def test_a_full_context_ends_the_loop_and_marks_the_trace() -> None:
    overflow = (400, "This model's maximum context length is 16 tokens")
    trace = await play(ScriptedModel([("price", '{"item": "tea"}')], overflow))
    assert trace.ok and trace.num_turns == 1 and trace.is_truncated


async def test_a_refused_model_call_is_recorded_as_its_cause() -> None:
    trace = await play(ScriptedModel((400, "no such model")))
    assert not trace.ok
    assert trace.last_error.type == "ProviderError" and "no such model" in trace.last_error.message


async def test_a_failing_engine_is_asked_again_and_the_turn_counts_once(monkeypatch) -> None:
    monkeypatch.setattr(connection, "BACKOFF", 0.01)
    model = ScriptedModel((503, "restarting"), (429, "busy"), "Here I am.")
    trace = await play(model)
    assert trace.ok and trace.num_turns == 1 and len(model.requests) == 3
    dead = await play(ScriptedModel((503, "gone")))
    assert not dead.ok and dead.last_error.status_code == 503


async def test_the_caller_may_be_the_user() -> None:
    model = ScriptedModel("Hello.", [("price", '{"item": "tea"}')], "Three.")
    async with (
        model.serve() as base_url,
        vf.Agent(agent_config(base_url)).interaction(shop(prompt=None)) as talk,
    ):
        assert (await talk.turn("Hi!")).last_reply == "Hello."
        assert (await talk.turn("What is tea?")).last_reply == "Three."
    assert talk.trace.ok and talk.trace.num_branches == 1
    roles = [message.role for message in talk.trace.messages]
    assert roles == ["user", "assistant", "user", "assistant", "tool", "assistant"]


async def test_mcp_servers_are_tools_too() -> None:
    import uvicorn
    from mcp.server.mcpserver import MCPServer

    mcp = MCPServer("calculator")
    mcp.add_tool(lambda a, b: str(a + b), name="add", description="Add two numbers.")
    server = uvicorn.Server(uvicorn.Config(mcp.streamable_http_app(), port=0, log_level="error"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"

    class Calculator(vf.Toolset):
        pass

    class Sum(vf.Task[vf.TaskData]):
        @classmethod
        def toolsets(cls, config):
            return [Calculator(vf.ToolsetConfig(url=url))]

    model = ScriptedModel([("calculator_add", '{"a": 2, "b": 3}')], "Five.")
    trace = await play(model, Sum(vf.TaskData(prompt="2 + 3?")))
    server.should_exit = True
    await serving
    assert trace.ok and tool_results(trace) == ["5"]


async def test_many_rollouts_share_one_session() -> None:
    async with ScriptedModel("Done.").serve() as base_url, vf.Agent(agent_config(base_url)) as agent:
        traces = await asyncio.gather(*(agent.run(shop()) for _ in range(64)))
    assert all(trace.ok for trace in traces)
    assert len(connection._SESSIONS) == 1


def test_the_session_closes_with_its_event_loop() -> None:
    sessions = []

    async def look() -> None:
        await play(ScriptedModel("Done."))
        sessions.append(connection._SESSIONS[asyncio.get_running_loop()])

    asyncio.run(look())
    asyncio.run(look())
    assert sessions[0] is not sessions[1]
    assert all(session.closed for session in sessions)
    assert all(session not in connection._SESSIONS.values() for session in sessions)


async def train(model: ScriptedModel, tiny_model_dir, **keys) -> vf.Trace:
    """Run an episode with the training client, which renders messages to tokens and receives tokens with log-probs."""
    async with model.serve() as base_url:
        client = vf.TrainClientConfig(
            base_url=base_url,
            api_key_var="NO_SUCH_KEY",
            renderer=config_from_name("qwen3"),
            renderer_model_name=str(tiny_model_dir),
        )
        sampling = SamplingConfig(temperature=1.0, max_tokens=64)
        return await vf.Agent(agent_config(base_url, client=client, sampling=sampling)).run(shop(**keys))


async def test_a_tool_call_that_the_renderer_cannot_read_is_answered(tiny_model_dir) -> None:
    cut = '<tool_call>\n{"name": "price", "argum\n</tool_call><|im_end|>'
    call = '<tool_call>\n{"name": "price", "arguments": {"item": "tea"}}\n</tool_call><|im_end|>'
    model = ScriptedModel((cut, "stop"), (call, "stop"), ("Three.<|im_end|>", "stop"))
    trace = await train(model, tiny_model_dir)
    assert trace.ok and trace.num_turns == 3 and not trace.is_truncated
    assert tool_results(trace) == ["3"]
    assign_advantages(trace, 1.0)
    decode = byte_tokenizer().decode
    # the template strips thinking before the last user message, so the first reply becomes a separate sample
    first, second = flatten_trace(trace, seq_len=2000).samples
    assert decode(first.token_ids[first.mask]) == cut
    assert decode(second.token_ids[second.mask]) == call + "Three.<|im_end|>"
    for sample in (first, second):
        assert (sample.sampling_logprobs == -0.25 * sample.mask).all()
        assert (sample.advantages == sample.mask).all()
    context = decode(second.token_ids[~second.mask])
    assert context.count("<|im_start|>assistant\n") == 3
    assert "neither text nor a readable tool call" in context and "<tool_response>\n3" in context


async def test_a_model_that_only_writes_unreadable_calls_is_let_go(tiny_model_dir) -> None:
    trace = await train(ScriptedModel(("<tool_call>{<|im_end|>", "stop")), tiny_model_dir)
    assert trace.ok and trace.num_turns == 4


@pytest.mark.parametrize(
    ("end", "reason"), [("<|im_end|>", "stop"), ("<|endoftext|>", "stop"), ("", "length")]
)
async def test_the_stop_token_trains_and_the_finish_reason_tells_truncation(
    tiny_model_dir, end, reason
) -> None:
    trace = await train(ScriptedModel((f"Tea{end}", reason)), tiny_model_dir)
    assert trace.is_truncated == (reason == "length")
    (sample,) = flatten_trace(trace, seq_len=1000).samples
    assert byte_tokenizer().decode(sample.token_ids[sample.mask]) == f"Tea{end}"


async def test_a_prompt_beyond_the_context_is_kept_with_a_flag(tiny_model_dir) -> None:
    trace = await train(ScriptedModel(("Tea<|im_end|>", "stop")), tiny_model_dir, prompt="x" * 4000)
    assert trace.ok and trace.is_truncated and trace.num_turns == 0
