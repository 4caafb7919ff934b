"""Trajectories as a run records them: the turns of a story with a real renderer, interception server and gateway,
answered by a scripted engine that records every token."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import renderers.client
from aiohttp import web
from story_harness import STORIES, Chat, Story
from verifiers.v1 import Trace

from braidrl.configs.orchestrator import GatewayConfig
from braidrl.orchestrator.engines.pool import Replicas
from braidrl.orchestrator.envs.source import FinishedEpisode, TrainEnv
from braidrl.orchestrator.gateway.server import Gateway
from braidrl.orchestrator.train.algo.routing import assign_advantages
from braidrl.orchestrator.train.samples import flatten_trace
from braidrl.orchestrator.train.turns import Turn
from braidrl.transport.types import TrainingSample
from braidrl.utils.tiny_model import byte_tokenizer
from tests.support.stub_engine import StubEngine
from tests.support.stub_trainer import orchestrator_config

END = "<|im_end|>"
HEADER = "<|im_start|>assistant\n"

TEMPLATE = (
    "{%- set said = namespace(last=-1) -%}"
    "{%- for m in messages if m.role == 'user' -%}{%- set said.last = messages.index(m) -%}{%- endfor -%}"
    "{%- if tools -%}{{ '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' }}{%- endif -%}"
    "{%- for m in messages -%}"
    "{{ '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\\n' }}"
    "{%- if m.reasoning_content and loop.index0 > said.last -%}"
    "{{ '<think>' + m.reasoning_content + '</think>' }}{%- endif -%}"
    "{%- if m.role == 'tool' -%}{{ '<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{%- elif m.content -%}{{ m.content }}{%- endif -%}"
    '{%- for call in m.tool_calls or [] -%}{{ \'<tool_call>\\n{"name": "\' + call.function.name'
    " + '\", \"arguments\": ' + call.function.arguments | tojson + '}\\n</tool_call>' }}{%- endfor -%}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
"""Chat template with tools that keeps thinking only after the last user message, like that of Qwen3."""

RENDERERS = {"qwen3": {"name": "qwen3"}, "default": {"name": "default", "tool_parser": "qwen3"}}


TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def results(reply: dict[str, Any], text: str) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in reply["tool_calls"]]


def call(at: str, thought: str = "") -> str:
    """A turn with a tool call."""
    said = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    return f'{said}<tool_call>\n{{"name": "look", "arguments": {{"at": "{at}"}}}}\n</tool_call>{END}'


async def look_around(chat: Chat, history: list[dict[str, Any]], turns: int) -> None:
    """Run turns and append their messages to `history`. Replies with tool calls are followed by their results."""
    for turn in range(turns):
        reply = await chat.ask(history, [TOOL])
        history += [reply, *(results(reply, f"saw {turn}") if reply.get("tool_calls") else ())]


def create_tokenizer(path: Path, template: str = TEMPLATE) -> Path:
    """Save the byte tokenizer with a custom chat template and return the folder."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(path)
    return path


class Call(NamedTuple):
    """Prompt and completion of one call to the engine."""

    prompt: list[int]
    completion: list[int]
    logprobs: list[float]

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.completion


class ScriptedEngine(StubEngine):
    """Engine that answers calls with the replies of a script: texts or token ids, truncated to `max_tokens`.

    A script is a sequence of replies, or a mapping of sequences, each for the calls whose prompt contains its key. All
    log-probs are different, so that each sampled token can be identified.
    """

    def __init__(self, script: Sequence[Any] | Mapping[str, Sequence[Any]], **settings: Any) -> None:
        super().__init__(**settings)
        scripts = script if isinstance(script, Mapping) else {"": script}
        self.scripts = {key: iter(replies) for key, replies in scripts.items()}
        self.calls: list[Call] = []
        self.produced = 0

    async def _generate(self, request: web.Request) -> web.Response:
        body = await self._receive(request)
        prompt, params = body["token_ids"], body["sampling_params"]
        text = byte_tokenizer().decode(prompt)
        reply = next(next(replies) for key, replies in self.scripts.items() if key in text)
        tokens = byte_tokenizer().encode(reply) if isinstance(reply, str) else reply
        tokens = tokens[: params["max_tokens"]]
        first, self.produced = self.produced + 1, self.produced + len(tokens)
        logprobs = [-number / 1024 for number in range(first, self.produced + 1)]
        self.calls.append(Call(prompt, tokens, logprobs))
        content = [
            {"token": f"token_id:{token}", "logprob": logprob, "top_logprobs": []}
            for token, logprob in zip(tokens, logprobs, strict=True)
        ]
        reason = "stop" if tokens[-1] in params["stop_token_ids"] else "length"
        choice = {"index": 0, "token_ids": tokens, "finish_reason": reason, "logprobs": {"content": content}}
        return web.json_response({"request_id": "x", "choices": [choice]})


@dataclass
class Played:
    """A finished episode, the calls that the engine received, and the resulting samples."""

    finished: FinishedEpisode
    calls: list[Call]
    samples: list[TrainingSample]

    @property
    def trace(self) -> Trace:
        (trace,) = self.finished.episode.traces
        return trace

    @property
    def turns(self) -> list[Turn]:
        return self.finished.turns[self.trace.id]

    def check(self, *, untrained: Sequence[int] = ()) -> None:
        """Assert that the samples are exact.

        The tokens of every sample are prompt and completion of one call. Every sampled token trains exactly once, with
        its own log-prob and the credit of its trace, and no other token trains. Calls in `untrained` do not train."""
        wholes = [call.tokens for call in self.calls]
        taught: dict[float, int] = {}
        for sample in self.samples:
            tokens = sample.token_ids.tolist()
            assert tokens in wholes
            for call in self.calls:
                start, end = len(call.prompt), len(call.tokens)
                if tokens[:end] == call.tokens:
                    assert sample.mask[start:end].all() or not sample.mask[start:end].any()
            assert (sample.advantages == sample.mask).all()
            assert not sample.sampling_logprobs[~sample.mask].any()
            for position in np.flatnonzero(sample.mask):
                taught[float(sample.sampling_logprobs[position])] = tokens[position]
        expected = {
            np.float32(logprob): token
            for number, call in enumerate(self.calls)
            if number not in untrained
            for logprob, token in zip(call.logprobs, call.completion, strict=True)
        }
        assert taught == expected
        assert sum(int(sample.mask.sum()) for sample in self.samples) == len(expected)

    def texts(self) -> list[str]:
        return [byte_tokenizer().decode(sample.token_ids) for sample in self.samples]

    def learnt(self) -> list[str]:
        """Return the text that each sample trains."""
        return [byte_tokenizer().decode(sample.token_ids[sample.mask]) for sample in self.samples]


async def play(
    tokenizer: Path,
    renderer: dict[str, Any],
    script: Sequence[Any] | Mapping[str, Sequence[Any]],
    story: Story | None = None,
    *,
    env: dict[str, Any] | None = None,
    context: int = 6000,
    max_tokens: int = 500,
) -> Played:
    """Run one episode of a story, or of the environment block `env`, as in a training run."""
    # The lock may be bound to the event loop of an earlier test.
    renderers.client._max_prompt_len_lock = asyncio.Lock()
    if story is not None:
        STORIES["told"] = story
        env = {
            "taskset": {"id": "stub-tasks"},
            "agent": {"harness": {"id": "story-harness", "story": "told"}},
        }
    source = {"name": "story", "env": env}
    train = {"group_size": 1, "sampling": {"max_tokens": max_tokens}, "source": [source]}
    async with ScriptedEngine(script, model=str(tokenizer), max_model_len=context) as engine:
        config = orchestrator_config(
            tokenizer, Path("run"), engine.url, seq_len=context, renderer=renderer, train=train
        )
        replicas = Replicas([engine.url], live=True)
        await replicas.connect(5.0)
        async with Gateway(GatewayConfig(), {str(tokenizer): replicas}, seed=0, context=context) as gateway:
            played = TrainEnv(config.train.source[0], config, gateway)
            async with played.serving():
                finished = await played.run(played.curriculum.next_task(), "key")
        await replicas.close()
    assert finished.error is None, finished.error
    (trace,) = finished.episode.traces
    assign_advantages(trace, 1.0)
    flat = flatten_trace(trace, seq_len=context, versions=finished.versions(trace.id))
    assert not flat.refused
    return Played(finished, engine.calls, flat.samples)
