"""Turns: merging, fallback reasons, log and metrics."""

import asyncio
import json
import logging
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import renderers.client
import torch
from engine_helpers import plain_logprobs
from renderers.base import load_tokenizer
from renderers.custom import load_target
from server_helpers import address_of, running
from story_harness import STORIES, Chat
from trajectories import END, RENDERERS, create_tokenizer, play

from braidrl.configs.model import RendererConfig
from braidrl.configs.orchestrator import GatewayConfig
from braidrl.orchestrator.engines.pool import Replicas
from braidrl.orchestrator.envs.source import TrainEnv
from braidrl.orchestrator.gateway.server import Gateway
from braidrl.orchestrator.pipeline.metrics import StepMetrics
from braidrl.orchestrator.train.samples import Flattened, flatten_trace
from braidrl.orchestrator.train.turns import FALLBACKS, Turn, TurnReader
from braidrl.transport.types import TrainingSample
from braidrl.utils.tiny_model import byte_tokenizer
from tests.support.stub_trainer import orchestrator_config, run_stub

LOOK = {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}
CALL = f'<think>\nhm\n</think>\n\n<tool_call>\n{{"name": "look", "arguments": {{}}}}\n</tool_call>{END}'
KEEPING = {"name": "qwen3", "thinking_retention": "all"}
BRIDGED = Turn(merged=True, fallback=None)

SAMPLE = TrainingSample(
    token_ids=np.zeros(2, np.int32), mask=np.ones(2, bool), sampling_logprobs=np.zeros(2, np.float32)
)

COUNTING = """
from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer


class Counting(Qwen3Renderer):
    config_class = Qwen3RendererConfig
    bridges = []

    def bridge_to_next_turn(self, *args, **kwargs):
        bridge = super().bridge_to_next_turn(*args, **kwargs)
        self.bridges.append(bridge is not None)
        return bridge
"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def saw(what: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "call_0", "content": what}


async def talks(chat: Chat) -> None:
    await chat.ask([user("one"), await chat.ask([user("one")]), user("two")])


async def drops_thinking(chat: Chat) -> None:
    reply = await chat.ask([user("one")])
    await chat.ask([user("one"), {"role": "assistant", "content": reply["content"]}, user("two")])


async def makes_up_an_answer(chat: Chat) -> None:
    history = [user("one"), await chat.ask([user("one")]), user("two")]
    await chat.ask([*history, {"role": "assistant", "content": "You said so."}, user("three")])


async def changes_the_system_prompt(chat: Chat) -> None:
    history = [{"role": "system", "content": "Be kind."}, user("one")]
    await chat.ask(
        [{"role": "system", "content": "Be brief."}, *history[1:], await chat.ask(history), user("two")]
    )


async def changes_tools(chat: Chat) -> None:
    other = {**LOOK, "function": {**LOOK["function"], "name": "listen"}}
    await chat.ask([user("one"), await chat.ask([user("one")], [LOOK]), saw("a")], [LOOK, other])


async def asks_twice(chat: Chat) -> None:
    await chat.ask([user("one"), await chat.ask([user("one")]), user("two"), user("three")])


async def asks_again(chat: Chat) -> None:
    history = [user("one"), await chat.ask([user("one")], [LOOK]), saw("a")]
    history += [await chat.ask(history, [LOOK]), user("two")]
    await chat.ask(history, [LOOK])


async def goes_back_behind_a_break(chat: Chat) -> None:
    history = [user("one"), await chat.ask([user("one")], [LOOK]), saw("a")]
    await chat.ask([*history, await chat.ask(history, [LOOK]), user("two")], [LOOK])
    await chat.ask([*history[:2], saw("b")], [LOOK])


async def shows_examples(chat: Chat) -> None:
    examples = [user("1"), {"role": "assistant", "content": "I"}, user("2")]
    await chat.ask([*examples, await chat.ask(examples), user("3")])
    await chat.ask([user("1"), {"role": "assistant", "content": "i"}, user("2")])


THOUGHT, OPEN = f"<think>\nhm\n</think>\n\nA{END}", f"<think>\nhm{END}"


@pytest.mark.parametrize(
    ("renderer", "story", "script", "expected"),
    [
        ("qwen3", talks, [f"A{END}", f"B{END}"], [Turn(True, "thinking_stripped")]),
        ("keeping", talks, [f"A{END}", f"B{END}"], [BRIDGED]),
        ("qwen3", asks_again, [CALL, THOUGHT, f"B{END}"], [BRIDGED, Turn(False, "thinking_stripped")]),
        ("qwen3", asks_again, [CALL, f"A{END}", f"B{END}"], [BRIDGED, Turn(False, "thinking_stripped")]),
        ("keeping", asks_again, [CALL, THOUGHT, f"B{END}"], [BRIDGED, BRIDGED]),
        ("keeping", asks_again, [CALL, OPEN, f"B{END}"], [BRIDGED, Turn(False, "refused")]),
        ("default", asks_again, [CALL, THOUGHT, f"B{END}"], [Turn(True, "no_bridge"), Turn(False, "no_bridge")]),
        ("keeping", drops_thinking, [THOUGHT, f"B{END}"], [Turn(False, "history_changed")]),
        ("keeping", makes_up_an_answer, [f"A{END}", f"B{END}"], [Turn(False, "history_changed")]),
        ("keeping", changes_the_system_prompt, [f"A{END}", f"B{END}"], [Turn(False, "history_changed")]),
        ("keeping", changes_tools, [CALL, f"B{END}"], [Turn(False, "tools_changed")]),
        ("keeping", asks_twice, [THOUGHT, f"B{END}"], [Turn(False, "other_messages")]),
        ("keeping", asks_twice, [f"A{END}", f"B{END}"], [Turn(True, "other_messages")]),
        ("qwen3", goes_back_behind_a_break, [CALL, CALL, f"B{END}", f"C{END}"],
         [BRIDGED, Turn(False, "thinking_stripped"), Turn(False, "rewound")]),
        ("keeping", shows_examples, [f"A{END}", f"B{END}", f"C{END}"], [BRIDGED]),
    ],
)  # fmt: skip
async def test_turns_have_their_fallback_reason(
    tokenizer: Path, renderer: str, story: Any, script: list[str], expected: list[Turn]
) -> None:
    played = await play(tokenizer, {**RENDERERS, "keeping": KEEPING}[renderer], script, story)
    played.check()
    assert played.turns == expected


async def test_derived_bridges_equal_those_of_the_renderer(tokenizer: Path, tmp_path: Path) -> None:
    """Bridges built and refused during the episode equal those derived from the message graph."""
    path = tmp_path / "counting.py"
    path.write_text(COUNTING)
    block = {"name": "custom", "import_path": f"{path}:Counting"}
    bridges = load_target(block["import_path"]).bridges

    async def story(chat: Chat) -> None:
        for part in (asks_again, talks, drops_thinking, goes_back_behind_a_break, shows_examples):
            await part(chat)
            seen.append(len(bridges))

    seen: list[int] = []
    script = [
        CALL,
        THOUGHT,
        THOUGHT,
        THOUGHT,
        f"A{END}",
        f"A{END}",
        THOUGHT,
        CALL,
        THOUGHT,
        f"B{END}",
        f"C{END}",
    ]
    played = await play(tokenizer, block, [*script, *[f"D{END}"] * 3], story)
    played.check()
    built = bridges[: seen[-1]]  # later calls come from reading the graph
    assert built == [turn.fallback is None for turn in played.turns]
    assert (built.count(True), built.count(False)) == (3, 5)


@pytest.mark.parametrize(
    ("name", "expected"), [("qwen3", [BRIDGED]), ("default", [Turn(False, "no_bridge")])]
)
async def test_tokens_that_no_tokenizer_would_write_are_kept_or_start_a_sample(
    tokenizer: Path, tmp_path: Path, name: str, expected: list[Turn]
) -> None:
    """The model may sample other tokens for a text than the tokenizer produces."""
    merging = with_a_merge(tokenizer, tmp_path / "merging", "a", "b")
    spelt, whole = byte_tokenizer().encode(f"ab{END}"), load_tokenizer(str(merging)).encode(f"ab{END}")
    assert (len(spelt), len(whole)) == (3, 2)
    renderer = {**RENDERERS[name], **({"thinking_retention": "all"} if name == "qwen3" else {})}
    played = await play(merging, renderer, [spelt, f"c{END}"], talks)
    played.check()
    assert played.turns == expected
    assert played.samples[0].token_ids[played.samples[0].mask][:2].tolist() == spelt[:2]


def with_a_merge(tokenizer: Path, path: Path, *pair: str) -> Path:
    """Return a tokenizer that encodes a pair of letters as one token."""
    shutil.copytree(tokenizer, path)
    data = json.loads((path / "tokenizer.json").read_text())
    data["model"]["vocab"]["".join(pair)] = 300
    data["model"]["merges"] = [list(pair)]
    (path / "tokenizer.json").write_text(json.dumps(data))
    return path


async def test_the_trainer_recomputes_the_log_probs_of_merged_turns(tiny_model_dir: Path) -> None:
    """Three turns of the embedded engine are one sample, and a forward over it gives the sampler's log-probs."""
    renderers.client._max_prompt_len_lock = asyncio.Lock()  # bound to the event loop of an earlier test
    source = {"env": {"taskset": {"id": "guess-number", "guesses": 3, "num_tasks": 1}}}
    train = {"group_size": 1, "sampling": {"max_tokens": 12, "temperature": 0.7}, "source": [source]}
    async with running(tiny_model_dir) as server:
        url = await address_of(server)
        config = orchestrator_config(tiny_model_dir, Path("run"), url, renderer=KEEPING, train=train)
        replicas = Replicas([url], live=True)
        await replicas.connect(10.0)
        async with Gateway(GatewayConfig(), {str(tiny_model_dir): replicas}, seed=0, context=256) as gateway:
            env = TrainEnv(config.train.source[0], config, gateway)
            async with env.serving():
                finished = await env.run(env.curriculum.next_task(), "key")
        await replicas.close()
    (trace,) = finished.episode.traces
    assert trace.num_turns == 3
    (sample,) = flatten_trace(trace, seq_len=256).samples
    expected = plain_logprobs(tiny_model_dir, sample.token_ids.tolist(), 0.7)
    taken = np.flatnonzero(sample.mask)
    torch.testing.assert_close(
        torch.tensor(sample.sampling_logprobs[taken]),
        expected[taken - 1, sample.token_ids[taken]],
        atol=1e-4,
        rtol=0,
    )


async def test_a_reason_is_logged_once(tokenizer: Path, caplog: pytest.LogCaptureFixture) -> None:
    played = await play(tokenizer, RENDERERS["qwen3"], [CALL, THOUGHT, f"B{END}"], asks_again)
    reader = TurnReader("words", str(tokenizer), RendererConfig(name="qwen3"))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert await reader.read(played.trace) == played.turns
    (record,) = caplog.records
    assert "source words" in record.getMessage() and FALLBACKS["thinking_stripped"] in record.getMessage()


async def test_a_step_reports_samples_merged_turns_and_fallbacks(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    STORIES["talks"] = talks
    harness = {"id": "story-harness", "story": "talks"}
    source = {"env": {"taskset": {"id": "stub-tasks"}, "agent": {"harness": harness}}}
    train = {"group_size": 4, "sampling": {"max_tokens": 16}, "source": [source]}
    await run_stub(tiny_model_dir, tmp_path, train=train, max_steps=1, batch_size=4)
    (line,) = (tmp_path / "metrics" / "orchestrator.jsonl").read_text().splitlines()
    metrics = {name: value for name, value in json.loads(line).items() if name.startswith("trajectories/")}
    assert metrics == {
        "trajectories/samples": 1.0,
        "trajectories/merged": 1.0,
        "trajectories/fallback": 1.0,
        "trajectories/fallback/thinking_stripped": 1.0,
    }


def test_shares_are_of_the_turns_that_continue_a_conversation() -> None:
    metrics = StepMetrics()
    assert not any(name.startswith("trajectories/") for name in metrics.summary())
    metrics.flattened(Flattened())
    metrics.flattened(Flattened([SAMPLE, SAMPLE], Counter(too_long=1)))
    metrics.continued += [BRIDGED, BRIDGED, Turn(True, "no_bridge"), Turn(False, "tools_changed")]
    summary = metrics.summary()
    assert summary["trajectories/samples"] == 1.0 and summary["refused/too_long"] == 1.0
    assert summary["trajectories/merged"] == 0.75 and summary["trajectories/fallback"] == 0.5
    assert (
        summary["trajectories/fallback/no_bridge"] == summary["trajectories/fallback/tools_changed"] == 0.25
    )
