"""Trajectories of every shape: samples contain exactly the tokens that the engine received and sampled."""

from pathlib import Path
from typing import Any

import pytest
from story_harness import Chat
from trajectories import END, HEADER, RENDERERS, call, create_tokenizer, look_around, play, user

from braidrl.configs.algorithm import EchoConfig
from braidrl.orchestrator.train.algo.echo import EchoAlgorithm
from braidrl.orchestrator.train.samples import flatten_trace
from braidrl.orchestrator.train.turns import Turn
from braidrl.utils.tiny_model import byte_tokenizer

KEEPING = {"name": "qwen3", "thinking_retention": "all"}
BRIDGED = Turn(merged=True, fallback=None)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(params=RENDERERS)
def renderer(request: pytest.FixtureRequest) -> dict[str, Any]:
    return RENDERERS[request.param]


def fallback_of(renderer: dict[str, Any], merged: bool, reason: str) -> Turn:
    return Turn(merged, "no_bridge" if renderer["name"] == "default" else reason)


async def test_thinking_stripped_between_turns_gives_two_samples_with_credit(
    tokenizer: Path, renderer: dict[str, Any]
) -> None:
    async def story(chat: Chat) -> None:
        history = [user("one")]
        history += [await chat.ask(history), user("two")]
        await chat.ask(history)

    first, second = f"<think>\nhard\n</think>\n\nA{END}", f"<think>\neasy\n</think>\n\nB{END}"
    played = await play(tokenizer, renderer, [first, second], story)
    played.check()
    assert played.learnt() == [first, second]
    assert "hard" not in played.texts()[1]
    assert played.turns == [fallback_of(renderer, False, "thinking_stripped")]


async def test_a_renderer_that_keeps_thinking_gives_one_sample(tokenizer: Path) -> None:
    async def story(chat: Chat) -> None:
        history = [user("one")]
        history += [await chat.ask(history), user("two")]
        await chat.ask(history)

    replies = [f"<think>\nhard\n</think>\n\nA{END}", f"<think>\neasy\n</think>\n\nB{END}"]
    played = await play(tokenizer, KEEPING, replies, story)
    played.check()
    assert played.learnt() == ["".join(replies)]
    assert played.turns == [BRIDGED]


async def test_the_header_of_a_second_turn_is_there_and_not_trained(
    tokenizer: Path, renderer: dict[str, Any]
) -> None:
    async def story(chat: Chat) -> None:
        await look_around(chat, [user("go")], 3)

    played = await play(tokenizer, renderer, [call("a"), call("b"), f"Done.{END}"], story)
    played.check()
    (sample,) = played.samples
    decode = byte_tokenizer().decode
    for prompt, completion, _ in played.calls:
        start = len(prompt)
        header = slice(start - len(byte_tokenizer().encode(HEADER)), start)
        assert decode(sample.token_ids[header]) == HEADER
        assert not sample.mask[header].any()
        assert sample.mask[start : start + len(completion)].all()


async def test_tool_calls_make_one_sample(tokenizer: Path, renderer: dict[str, Any]) -> None:
    async def story(chat: Chat) -> None:
        await look_around(chat, [{"role": "system", "content": "Look."}, user("go")], 3)

    replies = [call("a", "first a"), call("b"), f"Done.{END}"]
    played = await play(tokenizer, renderer, replies, story)
    played.check()
    assert played.learnt() == ["".join(replies)]
    merged = Turn(True, "no_bridge") if renderer["name"] == "default" else BRIDGED
    assert played.turns == [merged, merged]


async def test_of_five_turns_that_break_at_the_fourth_two_samples_remain(
    tokenizer: Path, renderer: dict[str, Any]
) -> None:
    async def story(chat: Chat) -> None:
        history = [user("go")]
        await look_around(chat, history, 3)
        history.append(user("again"))
        await look_around(chat, history, 2)

    replies = [call("a", "hm"), call("b"), f"Done.{END}", call("c", "hm"), f"Done again.{END}"]
    played = await play(tokenizer, renderer, replies, story)
    played.check()
    assert played.learnt() == ["".join(replies[:3]), "".join(replies[3:])]
    assert [turn.merged for turn in played.turns] == [True, True, False, True]


async def test_echo_predicts_only_tool_output(tokenizer: Path, renderer: dict[str, Any]) -> None:
    """After a chat template has stripped thinking, the positions of later messages are unknown."""

    async def story(chat: Chat) -> None:
        history = [user("go")]
        await look_around(chat, history, 3)
        history.append(user("again"))
        await look_around(chat, history, 2)

    replies = [call("a", "a long thought"), call("b"), f"Done.{END}", call("c", "hm"), f"Done again.{END}"]
    played = await play(tokenizer, renderer, replies, story)
    await EchoAlgorithm(EchoConfig()).score_episode(played.finished.episode)
    first, second = flatten_trace(played.trace, seq_len=6000).samples
    decode = byte_tokenizer().decode
    if renderer["name"] == "qwen3":
        assert decode(first.token_ids[first.ce_weights > 0]) == "saw 0saw 1"
        assert decode(second.token_ids[second.ce_weights > 0]) == "saw 0"
    else:
        turn = "\n<|im_start|>user\n<tool_response>\nsaw {}\n</tool_response><|im_end|>\n"
        assert decode(first.token_ids[first.ce_weights > 0]) == turn.format(0) + turn.format(1)
        assert second.ce_weights is None


async def test_the_tokens_of_samples_grow_linearly_where_turns_extend(tokenizer: Path) -> None:
    """Without extension they grow quadratically with the number of turns."""

    async def tokens(turns: int, renderer: dict[str, Any]) -> int:
        async def story(chat: Chat) -> None:
            history = []
            for turn in range(turns):
                history.append(user(f"look {turn}"))
                history.append(await chat.ask(history))

        played = await play(tokenizer, renderer, [f"<think>\nlong thought\n</think>\n\n{END}"] * turns, story)
        played.check()
        return sum(len(sample.token_ids) for sample in played.samples)

    linear = [await tokens(turns, KEEPING) for turns in (2, 4, 8)]
    assert linear[2] - linear[1] == 2 * (linear[1] - linear[0])
    square = [await tokens(turns, RENDERERS["qwen3"]) for turns in (2, 4, 8)]
    assert square[2] - square[1] > 3 * (square[1] - square[0])


@pytest.mark.parametrize("arguments", ['"{}"', '"\\"{}\\""', '{"command": "ca'])
async def test_a_malformed_tool_call_is_answered_and_all_turns_train(
    tokenizer: Path, renderer: dict[str, Any], arguments: str
) -> None:
    """Arguments are encoded twice or three times, or are truncated."""
    wrong = f'<tool_call>\n{{"name": "sh", "arguments": {arguments}}}\n</tool_call>{END}'
    right = f'<tool_call>\n{{"name": "sh", "arguments": {{"command": "ls"}}}}\n</tool_call>{END}'
    env = {"taskset": {"id": "terminal"}}
    played = await play(tokenizer, renderer, [wrong, right, f"a{END}"], env=env)
    played.check()
    assert "".join(played.learnt()) == f"{wrong}{right}a{END}"
    assert played.trace.num_turns == 3
    answer = played.texts()[-1].split(wrong)[-1].split(right)[0]
    assert "error: " in answer
    read = renderer["name"] == "qwen3" and arguments.endswith(
        '"'
    )  # the template renders other arguments than the model sampled
    assert len(played.samples) == (1 if read else 2)


@pytest.mark.parametrize(("room", "turns"), [(5, 2), (0, 1), (-2, 1)])
async def test_a_full_context_caps_or_ends_the_rollout_and_what_was_sampled_trains(
    tokenizer: Path, renderer: dict[str, Any], room: int, turns: int
) -> None:
    env = {"taskset": {"id": "terminal"}}
    script = [
        f'<tool_call>\n{{"name": "sh", "arguments": {{"command": "ls"}}}}\n</tool_call>{END}',
        f"abcdefgh{END}",
    ]
    whole = await play(tokenizer, renderer, script, env=env)
    limit = len(whole.calls[1].prompt) + room
    played = await play(tokenizer, renderer, script, env=env, context=limit)
    played.check()
    assert played.trace.ok and played.trace.is_truncated and not whole.trace.is_truncated
    assert len(played.calls) == played.trace.num_turns == turns
    assert played.learnt() == [script[0] + "abcde"[: max(0, room)]]
