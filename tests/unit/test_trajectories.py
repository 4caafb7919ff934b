"""Trajectories of every shape: the samples are, token for token, what the engine was sent and produced."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from story_harness import Chat
from trajectories import END, HEADER, RENDERERS, Played, create_tokenizer, play

from braidrl.orchestrator.train.turns import Turn
from braidrl.utils.tiny_model import byte_tokenizer

TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}
KEEPING = {"name": "qwen3", "thinking_retention": "all"}
BRIDGED = Turn(merged=True, fallback=None)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(params=RENDERERS)
def renderer(request: pytest.FixtureRequest) -> dict[str, Any]:
    return RENDERERS[request.param]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def results(reply: dict[str, Any], text: str) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in reply["tool_calls"]]


def call(at: str, thought: str = "") -> str:
    """A turn that looks at something."""
    said = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    return f'{said}<tool_call>\n{{"name": "look", "arguments": {{"at": "{at}"}}}}\n</tool_call>{END}'


async def look_around(chat: Chat, history: list[dict[str, Any]], turns: int) -> None:
    """So many turns, each but the last one followed by the result of its tool call."""
    for turn in range(turns):
        reply = await chat.ask(history, [TOOL])
        history += [reply, *(results(reply, f"saw {turn}") if reply.get("tool_calls") else ())]


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


async def test_the_tokens_of_samples_grow_linearly_where_turns_extend(tokenizer: Path) -> None:
    """And with the square of the turns where none does."""

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
    """Encoded twice, thrice, and cut."""
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
    )  # a template writes other arguments than it read
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


async def test_a_rollback_trains_what_both_continuations_share_once(
    tokenizer: Path, renderer: dict[str, Any]
) -> None:
    async def story(chat: Chat) -> None:
        start = [user("go"), await chat.ask([user("go")], [TOOL])]
        await chat.ask([*start, *results(start[1], "a wall")], [TOOL])
        await chat.ask([*start, *results(start[1], "a door")], [TOOL])  # undone, and looked at again
        await chat.ask([user("go")], [TOOL])  # all of it undone

    replies = [call("a", "hm"), f"Back.{END}", f"Through.{END}", call("b")]
    played = await play(tokenizer, renderer, replies, story)
    played.check()
    assert played.learnt() == [replies[0] + replies[1], replies[2], replies[3]]
    assert replies[0] in played.texts()[1] and replies[0] not in played.texts()[2]
    assert all(turn.merged for turn in played.turns)


async def test_two_subagents_have_samples_of_their_own(tokenizer: Path, renderer: dict[str, Any]) -> None:
    """They run at once, and hand back a word each."""

    async def story(chat: Chat) -> None:
        history = [user("delegate")]
        history.append(await chat.ask(history, [TOOL], "main"))
        await asyncio.gather(*(delegate(chat, name) for name in ("red", "blue")))
        history += results(history[1], "red and blue are done")
        await chat.ask(history, [TOOL], "end")
        for name in ("red", "blue"):
            chat.link("main", f"{name}-0", "subagent_call")
            chat.link(f"{name}-1", "end", "subagent_return")

    async def delegate(chat: Chat, name: str) -> None:
        history = [{"role": "system", "content": f"You are {name}."}, user("work")]
        history.append(await chat.ask(history, [TOOL], f"{name}-0"))
        await chat.ask([*history, *results(history[2], "fine")], [TOOL], f"{name}-1")

    main, red, blue = (
        [call(name, f"{name} thinks"), f"{name} is done.{END}"] for name in ("main", "red", "blue")
    )
    script = {"You are red": red, "You are blue": blue, "delegate": main}
    played = await play(tokenizer, renderer, script, story)
    played.check()
    assert sorted(played.learnt()) == sorted("".join(replies) for replies in (main, red, blue))
    assert [turn.merged for turn in played.turns] == [True] * 3
    assert not any("red thinks" in text for text in played.texts() if "delegate" in text)


async def compact(tokenizer: Path, renderer: dict[str, Any], ending: str) -> Played:
    """Two turns, a summary that is asked for, and what becomes of it: `accepted`, `refused`, or `failed`."""

    async def story(chat: Chat) -> None:
        history = [user("go")]
        await look_around(chat, history, 1)
        history.append(await chat.ask(history, [TOOL], "last"))
        asked = user("summarise")
        summary = await chat.ask([*history, asked], [TOOL], "summary")
        chat.link("last", "summary", "compaction_attempt")
        if ending == "accepted":
            await chat.ask([user(f"so far: {summary['content']}")], [TOOL], "next")
            chat.link("summary", "next", "compaction")
        elif ending == "refused":
            await chat.ask([*history, user("go on")], [TOOL], "next")
        else:
            chat.trace.stop("compaction_failed")

    script = [call("a"), f"Seen.{END}", f"Saw it.{END}", f"Next.{END}"]
    return await play(tokenizer, renderer, script, story)


async def test_an_accepted_compaction_trains_its_summary(tokenizer: Path, renderer: dict[str, Any]) -> None:
    played = await compact(tokenizer, renderer, "accepted")
    played.check()
    assert played.learnt() == [f"{call('a')}Seen.{END}Saw it.{END}", f"Next.{END}"]
    assert "Seen" not in played.texts()[1]


@pytest.mark.parametrize("ending", ["refused", "failed"])
async def test_a_refused_compaction_trains_all_but_its_summary(
    tokenizer: Path, renderer: dict[str, Any], ending: str
) -> None:
    played = await compact(tokenizer, renderer, ending)
    after = f"Next.{END}" if ending == "refused" else ""
    assert played.learnt() == [f"{call('a')}Seen.{END}{after}"]
    played.check(untrained=[2])
