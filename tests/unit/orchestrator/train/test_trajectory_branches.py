"""Trajectories that branch: rollbacks, subagents, compactions."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from story_harness import Chat
from trajectories import (
    END,
    RENDERERS,
    TOOL,
    Played,
    call,
    create_tokenizer,
    look_around,
    play,
    results,
    user,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(params=RENDERERS)
def renderer(request: pytest.FixtureRequest) -> dict[str, Any]:
    return RENDERERS[request.param]


async def test_a_rollback_trains_what_both_continuations_share_once(
    tokenizer: Path, renderer: dict[str, Any]
) -> None:
    async def story(chat: Chat) -> None:
        start = [user("go"), await chat.ask([user("go")], [TOOL])]
        await chat.ask([*start, *results(start[1], "a wall")], [TOOL])
        await chat.ask([*start, *results(start[1], "a door")], [TOOL])  # rolled back, then read again
        await chat.ask([user("go")], [TOOL])  # all of it rolled back

    replies = [call("a", "hm"), f"Back.{END}", f"Through.{END}", call("b")]
    played = await play(tokenizer, renderer, replies, story)
    played.check()
    assert played.learnt() == [replies[0] + replies[1], replies[2], replies[3]]
    assert replies[0] in played.texts()[1] and replies[0] not in played.texts()[2]
    assert all(turn.merged for turn in played.turns)


async def test_two_subagents_have_samples_of_their_own(tokenizer: Path, renderer: dict[str, Any]) -> None:
    """They run concurrently and return one word each."""

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
    """Two turns, then a compaction whose summary is `accepted`, `refused` or `failed`."""

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
