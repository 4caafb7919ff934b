"""Random trajectories: for any harness, samples contain exactly the tokens that the engine received and sampled."""

import random
from pathlib import Path
from typing import Any

import pytest
from story_harness import Chat
from trajectories import END, RENDERERS, TOOL, create_tokenizer, play, results, user

REPLIES = (
    f"So it is.{END}",
    f"<think>\nhm\n</think>\n\nSo it is.{END}",
    f"<think>\nnever done{END}",
    "cut",
    f'<tool_call>\n{{"name": "look", "arguments": {{"at": "a"}}}}\n</tool_call>{END}',
    f'<think>\nhm\n</think>\n\n<tool_call>\n{{"name":"look","arguments":{{ "at":"b" }}}}\n</tool_call>{END}',
    f'<tool_call>\n{{"name": "look", "arguments": "{{}}"}}\n</tool_call>{END}',
    f'<tool_call>\n{{"name": "look", "argum\n</tool_call>{END}',
    END,
)
RENDERED = {**RENDERERS, "keeping": {"name": "qwen3", "thinking_retention": "all"}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_tokenizer(tmp_path_factory.mktemp("tokenizer"))


class Wanderer:
    """Harness that makes random moves."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.histories: list[list[dict[str, Any]]] = [[user("go")]]
        """All messages sent so far, and those to choose from."""

    async def __call__(self, chat: Chat) -> None:
        for turn in range(8):
            history = self.change(self.dice.choice(self.histories[-3:]))
            reply = await chat.ask(history, self.dice.choice([[TOOL], [TOOL], []]))
            follow = results(reply, f"saw {turn}") if reply.get("tool_calls") else [user(f"and {turn}?")]
            self.histories.append([*history, reply, *follow])

    def change(self, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Usually do nothing, else roll back, start a conversation, or change or add a message."""
        move = self.dice.randrange(10)
        if move == 0:
            return history[: self.dice.randrange(1, len(history) + 1)]
        if move == 1:
            return [{"role": "system", "content": "You help."}, user("work")]
        if move == 2:
            return [{**message, "content": message.get("content") or "."} for message in history]
        if move == 3:
            return [
                {key: message[key] for key in message if key != "reasoning_content"} for message in history
            ]
        return [*history, user("quickly")] if move == 4 else history


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("renderer", RENDERED)
async def test_random_moves_train_every_sampled_token_once_after_what_it_was_sampled_after(
    tokenizer: Path, renderer: str, seed: int
) -> None:
    script = random.Random(seed).choices(REPLIES, k=8)
    played = await play(tokenizer, RENDERED[renderer], script, Wanderer(seed), context=20000)
    played.check()
    assert len(played.calls) == 8
    assert len(played.samples) <= 8
    assert all(turn.fallback or turn.merged for turn in played.turns)
