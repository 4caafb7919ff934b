"""Measurements of the examples on a real server, compared with a plain forward of the same model."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from engine_helpers import plain_logprobs, save_scaled
from server_helpers import running
from transformers import AutoTokenizer

from braidrl.orchestrator.pipeline.records import append_records
from examples.measure import bets, expected_rewards, exploitability, nll
from kuhn_poker import INFORMATION_SETS, conversation
from kuhn_poker import exploitability as exploitability_of
from tests.support.episodes import episode, node, trace

HEADER = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def chance(model: Path, information_set: str, action: str) -> float:
    """Return the probability of an action from a plain forward."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    turns = [
        f"<|im_start|>user\n{message['content']}<|im_end|>\n"
        if message["role"] == "user"
        else f"{HEADER}{message['content']}<|im_end|>\n"
        for message in conversation(information_set)
    ]
    tokens = tokenizer.encode(f"{''.join(turns)}{HEADER}{action}<|im_end|>")
    logprobs = plain_logprobs(model, tokens)
    return math.exp(sum(logprobs[at, tokens[at]] for at in (-2, -1)))


def chance_of(model: Path, tokenizer: Path, prompt: str, answer: str) -> float:
    """Return the probability of an answer followed by the end of the turn, from a plain forward."""
    given, reply = (
        AutoTokenizer.from_pretrained(tokenizer).encode(text)
        for text in (f"<|im_start|>user\n{prompt}<|im_end|>\n{HEADER}", f"{answer}<|im_end|>")
    )
    tokens = given + reply
    logprobs = plain_logprobs(model, tokens)
    return math.exp(sum(logprobs[at - 1, tokens[at]] for at in range(len(given), len(tokens))))


@asynccontextmanager
async def served(model: Path) -> AsyncIterator[tuple[str, str]]:
    """Serve a model and yield address and name."""
    async with running(model) as session, session.get("/health") as response:
        yield str(response.url.with_path("")), str(model)


async def test_the_strategy_of_a_model_is_what_it_answers(tiny_model_dir: Path) -> None:
    async with served(tiny_model_dir) as (base_url, name):
        table, illegal = await asyncio.to_thread(bets, base_url, name)
        measured = await asyncio.to_thread(exploitability, f"{base_url}/v1", name)
    expected = {key: [chance(tiny_model_dir, key, action) for action in "bp"] for key in INFORMATION_SETS}
    shares = {key: bet / (bet + passed) for key, (bet, passed) in expected.items()}
    assert table == pytest.approx(shares, rel=1e-3)
    assert illegal == pytest.approx(max(1 - bet - passed for bet, passed in expected.values()))
    assert measured == pytest.approx(exploitability_of(table), abs=1e-5)


async def test_the_reward_that_versions_expect(tiny_model_dir: Path, tmp_path: Path) -> None:
    save_scaled(tiny_model_dir, tmp_path, 1.5)
    tasks = [("3+4=", "7"), ("3-7=", "-4"), ("3+4=", "7")]
    async with served(tiny_model_dir) as (base_url, name):
        folders = [tmp_path, tiny_model_dir]
        rewards = await asyncio.to_thread(expected_rewards, f"{base_url}/v1", name, folders, tasks)
    expected = [
        [chance_of(folder, tiny_model_dir, prompt, answer) for prompt, answer in tasks] for folder in folders
    ]
    assert rewards == pytest.approx([sum(chances) / 3 for chances in expected], rel=1e-3)
    assert rewards[0] != pytest.approx(rewards[1], rel=0.1)


@pytest.mark.parametrize("roles", [{"tool"}, {"user", "tool"}, {"assistant"}])
async def test_the_surprise_of_recorded_tokens(tiny_model_dir: Path, tmp_path: Path, roles: set[str]) -> None:
    chain = [("user", 4), ("assistant", 3), ("tool", 5), ("assistant", 2), ("user", 3)]
    body = [False, True, True, False, True]
    played = episode(trace(roles=chain), trace(roles=chain[:3]))
    played.traces[0].nodes[2].is_content = body
    tool = list(range(7, 12))
    counted = {
        "tool": [[at for at, content in zip(tool, body, strict=True) if content], tool],
        "user": [[14, 15, 16], []],
        "assistant": [[4, 5, 6, 12, 13], [4, 5, 6]],
    }
    path = tmp_path / "episodes.jsonl"
    append_records(path, [played.to_record(float_decimals=None) | {"braid": {"env": "e"}}])
    async with served(tiny_model_dir) as (base_url, name):
        mean, number = await asyncio.to_thread(nll, base_url, name, path, roles)
    expected = []
    for index, item in enumerate(played.traces):
        (branch,) = item.branches
        logprobs = plain_logprobs(tiny_model_dir, branch.token_ids)
        positions = [at for role in roles for at in counted[role][index]]
        expected += [-float(logprobs[at - 1, branch.token_ids[at]]) for at in positions]
    assert number == len(expected)
    assert mean == pytest.approx(sum(expected) / number, abs=1e-4)


async def test_a_shared_message_counts_once(tiny_model_dir: Path, tmp_path: Path) -> None:
    played = episode(trace(roles=[("user", 4), ("assistant", 3), ("tool", 5), ("assistant", 2)]))
    played.traces[0].nodes.append(node("assistant", 6, 2))
    assert len(played.traces[0].branches) == 2
    append_records(tmp_path / "e.jsonl", [played.to_record(float_decimals=None) | {"braid": {"env": "e"}}])
    async with served(tiny_model_dir) as (base_url, name):
        _, sampled = await asyncio.to_thread(nll, base_url, name, tmp_path / "e.jsonl", {"assistant"})
        _, observed = await asyncio.to_thread(nll, base_url, name, tmp_path / "e.jsonl", {"tool"})
    assert (sampled, observed) == (3 + 2 + 6, 5)


def test_roles_without_tokens_are_refused(tmp_path: Path) -> None:
    append_records(tmp_path / "e.jsonl", [episode().to_record(float_decimals=None) | {"braid": {"env": "e"}}])
    with pytest.raises(ValueError, match="no token of tool"):
        nll("http://127.0.0.1:1", "m", tmp_path / "e.jsonl", {"tool"})
