"""What the recipes measure on a served model (`braid inference`, vLLM): it is asked over HTTP, with `prompt_logprobs`,
for the log-probs of given tokens. No sampling, so the figures are exact."""

import asyncio
import math
from collections.abc import Collection, Iterable
from pathlib import Path

from renderers import Message, Renderer
from verifiers.v1 import Trace

from braidrl.configs.model import RendererConfig
from braidrl.orchestrator.train.algo.echo import content_mask
from braidrl.orchestrator.train.algo.reference import Reference
from braidrl.orchestrator.train.replay import read_groups
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
    replies = [_reply(renderer, key, action) for key in INFORMATION_SETS for action in (BET, PASS)]
    scores = asyncio.run(_score(base_url, model, (tokens for tokens, _ in replies)))
    chances = [math.exp(sum(score[start:])) for score, (_, start) in zip(scores, replies, strict=True)]
    table, illegal = {}, 0.0
    for key, bet, passed in zip(INFORMATION_SETS, chances[::2], chances[1::2], strict=True):
        table[key] = bet / (bet + passed)
        illegal = max(illegal, 1.0 - bet - passed)
    return table, illegal


def _reply(renderer: Renderer, information_set: str, action: str) -> tuple[list[int], int]:
    """Token ids of an answer up to the end of its turn, and where it starts."""
    messages: list[Message] = [*conversation(information_set), {"role": "assistant", "content": action}]
    start = len(renderer.render_ids(messages[:-1], add_generation_prompt=True))
    tokens = renderer.render_ids(messages)
    return tokens[: tokens.index(renderer.get_stop_token_ids()[0], start) + 1], start


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
