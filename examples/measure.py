"""Exact measurements on a served model (`braid inference` or vLLM), from the log-probs of given tokens.

Log-probs are requested over HTTP with `prompt_logprobs`. Nothing is sampled, so the results have no sampling noise.
"""

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
"""Renderer of the examples."""
MAX_CONCURRENT = 8
"""Maximum number of concurrent requests."""
TIMEOUT = 60.0
"""Deadline of one request in seconds, retries included."""
ASSISTANT = "assistant"
"""Role of which the sampled tokens are measured."""


def exploitability(base_url: str, model: str) -> float:
    """Return the exploitability of the model's strategy in Kuhn poker, in chips (`kuhn_poker.exploitability`)."""
    return exploitability_of(bets(base_url, model)[0])


def bets(base_url: str, model: str) -> tuple[dict[str, float], float]:
    """Return the strategy of a model in Kuhn poker at temperature 1.

    Args:
        base_url: address of the server, with or without a trailing `/v1`.
        model: name of the model on the server, which is also the path of its tokenizer.

    Returns:
        The probability of a bet at each of `INFORMATION_SETS`, given that the reply is `b` or `p` followed by the end
        of the turn; and the maximum over the information sets of the probability that the reply is neither.
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
    """Return the expected mean reward of versions of a model at temperature 1, if only the right answer is rewarded.

    Args:
        base_url: address of a `braid inference` server. It serves the last version afterwards.
        model: name of the model on the server, which is also the path of its tokenizer.
        versions: folders with weights of the model.
        tasks: prompt and right answer of each task.

    Returns:
        For each version, the mean over the tasks of the probability that the reply is the answer followed by the end of
        the turn, in [0, 1]. This is a lower bound: longer replies that end with the answer are not counted.
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
    """Return the token ids of prompt and reply up to the end of the turn, and the index at which the reply starts."""
    messages: list[Message] = [*prompt, {"role": "assistant", "content": text}]
    start = len(renderer.render_ids(messages[:-1], add_generation_prompt=True))
    tokens = renderer.render_ids(messages)
    return tokens[: tokens.index(renderer.get_stop_token_ids()[0], start) + 1], start


def _chances(scores: list[list[float]], replies: list[tuple[list[int], int]]) -> list[float]:
    """Return the probability of each reply, given its prompt."""
    return [math.exp(math.fsum(score[start:])) for score, (_, start) in zip(scores, replies, strict=True)]


def nll(base_url: str, model: str, episodes: Path, roles: Collection[str]) -> tuple[float, int]:
    """Return the negative log-likelihood of recorded episodes under a model at temperature 1.

    Args:
        base_url: address of the server, with or without a trailing `/v1`.
        model: name of the model on the server.
        episodes: a run folder, or a JSONL file of its `episodes/train` or `episodes/eval`.
        roles: roles whose tokens are measured. For `assistant`, these are the sampled tokens. For any other (`tool`,
            `user`, ...), they are the contents of its messages after the first sampled one, which `echo` predicts.

    Returns:
        Mean negative log-likelihood in nats per token, and the number of tokens. A message shared by several branches
        of a trace counts once, in the first of them.

    Raises:
        ValueError: no token of these roles is recorded.
    """
    traces = (trace for group in read_groups(episodes) for trace in group.traces)
    chosen = [found for trace in traces for found in _choose(trace, roles)]
    count = sum(len(positions) for _, positions in chosen)
    if not count:
        raise ValueError(f"{episodes} contains no token of {', '.join(sorted(roles))}; choose other roles")
    scores = asyncio.run(_score(base_url, model, (tokens for tokens, _ in chosen)))
    picked = (score[at] for score, (_, positions) in zip(scores, chosen, strict=True) for at in positions)
    return -math.fsum(picked) / count, count


def _choose(trace: Trace, roles: Collection[str]) -> Iterable[tuple[list[int], list[int]]]:
    """Yield the token ids of each branch of a trace that has tokens of these roles, and the positions of these
    tokens."""
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


async def _score(base_url: str, model: str, sequences: Iterable[list[int]]) -> list[list[float]]:
    """Return the log-prob of every token of every sequence, NaN for first tokens."""
    async with Reference(model, [base_url], max_concurrent=MAX_CONCURRENT, timeout=TIMEOUT) as served:
        return await asyncio.gather(*(served.score(token_ids) for token_ids in sequences))


async def _score_versions(
    base_url: str, model: str, versions: Iterable[Path], sequences: list[list[int]]
) -> list[list[list[float]]]:
    """Return the log-probs of `_score` for each version of the weights, which are loaded in order."""
    scores = []
    async with aiohttp.ClientSession() as http:
        for number, folder in enumerate(versions, start=1):
            server = Server(http, base_url.rstrip("/").removesuffix("/v1"), Backoff(TIMEOUT))
            await update_embedded(server, folder, number)
            scores.append(await _score(base_url, model, sequences))
    return scores
