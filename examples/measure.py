"""What the recipes measure on a served model (`braid inference`, vLLM): it is asked over HTTP, with `prompt_logprobs`,
for the log-probs of given tokens. No sampling, so the figures are exact."""

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import aiohttp
from renderers import Message, Renderer
from verifiers.v1 import Trace

from braidrl.configs.model import RendererConfig
from braidrl.orchestrator.engines.client import Server
from braidrl.orchestrator.engines.weight_update import update_embedded
from braidrl.orchestrator.train.algo.echo import content_mask
from braidrl.orchestrator.train.algo.reference import Reference
from braidrl.orchestrator.train.rescore import read_groups
from braidrl.utils.http import Backoff
from braidrl.utils.renderer import load_renderer
from kuhn_poker import INFORMATION_SETS, conversation
from kuhn_poker import exploitability as exploitability_of
from kuhn_poker.game import BET, PASS

RENDERER = RendererConfig.model_validate({"name": "qwen3", "enable_thinking": False})
"""How the recipes turn messages into tokens."""
MAX_CONCURRENT = 8
"""Requests at once."""
TIMEOUT = 60.0
"""Deadline of one request, retries included, in seconds."""
ASSISTANT = "assistant"
"""The role whose sampled tokens count."""


def exploitability(base_url: str, model: str) -> float:
    """How much a best response wins against the model's Kuhn poker (`kuhn_poker.exploitability`), in chips."""
    return exploitability_of(bets(base_url, model)[0])


def bets(base_url: str, model: str) -> tuple[dict[str, float], float]:
    """The strategy of a model at Kuhn poker, at temperature 1.

    Args:
        base_url: address of the server, with or without a trailing `/v1`.
        model: its name there, which is also where its tokenizer lies.

    Returns:
        The probability of a bet at each of `INFORMATION_SETS`, given that the reply is `b` or `p` and then the end of
        the turn; and the largest probability, at any of them, that the reply is neither.
    """
    renderer = load_renderer(model, RENDERER)
    replies = [
        _reply(renderer, conversation(key), action) for key in INFORMATION_SETS for action in (BET, PASS)
    ]
    scores = asyncio.run(_score(base_url, model, (tokens for tokens, _ in replies)))
    chances = _chances(scores, replies)
    table, illegal = {}, 0.0
    for key, bet, passed in zip(INFORMATION_SETS, chances[::2], chances[1::2], strict=True):
        table[key] = bet / (bet + passed)
        illegal = max(illegal, 1.0 - bet - passed)
    return table, illegal


def expected_rewards(
    base_url: str, model: str, versions: Iterable[Path], tasks: Iterable[tuple[str, str]]
) -> list[float]:
    """The mean reward that versions of a model expect, at temperature 1, where the right answer alone earns one.

    Args:
        base_url: address of a `braid inference`, which serves the last version afterwards.
        model: its name there, which is also where its tokenizer lies.
        versions: folders with weights of it.
        tasks: prompt and right answer of each.

    Returns:
        For each version the mean over the tasks, in [0, 1], of the probability that the reply is the answer and then
        the end of the turn. A longer reply that ends with the answer adds nothing, so it is a lower bound.
    """
    counted = Counter(tasks)
    renderer = load_renderer(model, RENDERER)
    replies = [_reply(renderer, [{"role": "user", "content": prompt}], answer) for prompt, answer in counted]
    scores = asyncio.run(_score_versions(base_url, model, versions, [tokens for tokens, _ in replies]))
    return [
        math.fsum(map(math.prod, zip(_chances(version, replies), counted.values()))) / counted.total()
        for version in scores
    ]


def _reply(renderer: Renderer, prompt: Sequence[Message], text: str) -> tuple[list[int], int]:
    """Token ids of an answer up to the end of its turn, and where it starts."""
    messages: list[Message] = [*prompt, {"role": "assistant", "content": text}]
    start = len(renderer.render_ids(messages[:-1], add_generation_prompt=True))
    tokens = renderer.render_ids(messages)
    return tokens[: tokens.index(renderer.get_stop_token_ids()[0], start) + 1], start


def _chances(scores: list[list[float]], replies: list[tuple[list[int], int]]) -> list[float]:
    """The probability of each reply, given its prompt."""
    return [math.exp(math.fsum(score[start:])) for score, (_, start) in zip(scores, replies, strict=True)]


def nll(base_url: str, model: str, episodes: Path, roles: Collection[str]) -> tuple[float, int]:
    """How surprised a model is by recorded episodes, at temperature 1.

    Args:
        base_url: address of the server, with or without a trailing `/v1`.
        model: its name there.
        episodes: a run folder, or a JSONL file of its `episodes/train` or `episodes/eval`.
        roles: whose tokens count. `assistant`: what was sampled. Any other (`tool`, `user`, ...): the content of its
            messages after the first sampled one, which is what echo predicts.

    Returns:
        Mean negative log-likelihood in nats a token, and the number of tokens. A message that branches of a trace share
        counts once, after the first of them.

    Raises:
        ValueError: no token of these roles is recorded.
    """
    traces = (trace for group in read_groups(episodes) for trace in group.traces)
    chosen = [found for trace in traces for found in _choose(trace, roles)]
    count = sum(len(positions) for _, positions in chosen)
    if not count:
        raise ValueError(f"{episodes} holds no token of {', '.join(sorted(roles))}; choose other roles")
    scores = asyncio.run(_score(base_url, model, (tokens for tokens, _ in chosen)))
    picked = (score[at] for score, (_, positions) in zip(scores, chosen, strict=True) for at in positions)
    return -math.fsum(picked) / count, count


def _choose(trace: Trace, roles: Collection[str]) -> Iterable[tuple[list[int], list[int]]]:
    """The branches of a trace that have tokens of these roles: all token ids, and positions of those that count."""
    seen: set[int] = set()
    for branch in trace.branches:
        positions, start, answered = [], 0, False
        for node in branch.nodes:
            if node.sampled:
                counts = node.mask if ASSISTANT in roles else []
            else:
                counts = content_mask(node) if answered and node.message.role in roles else []
            if id(node) not in seen:
                positions += [start + offset for offset, count in enumerate(counts) if count]
            seen.add(id(node))
            start, answered = start + len(node.token_ids), answered or node.sampled
        if positions:
            yield branch.token_ids, positions


async def _score(base_url: str, model: str, asked: Iterable[list[int]]) -> list[list[float]]:
    """The log-prob of every token of every sequence; NaN for a first one."""
    async with Reference(model, [base_url], max_concurrent=MAX_CONCURRENT, timeout=TIMEOUT) as served:
        return await asyncio.gather(*(served.score(token_ids) for token_ids in asked))


async def _score_versions(
    base_url: str, model: str, versions: Iterable[Path], asked: list[list[int]]
) -> list[list[list[float]]]:
    """The same, under one version of the weights after the other."""
    scores = []
    async with aiohttp.ClientSession() as http:
        for number, folder in enumerate(versions, start=1):
            server = Server(http, base_url.rstrip("/").removesuffix("/v1"), Backoff(TIMEOUT))
            await update_embedded(server, folder, number)
            scores.append(await _score(base_url, model, asked))
    return scores
