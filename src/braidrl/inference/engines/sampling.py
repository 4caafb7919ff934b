"""Drawing tokens: pure functions on logits, with randomness from counters instead of generators.

B is the number of rows, V the vocabulary. A row's draw depends on its seed and position alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
BLOCK = 128


@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled. Ranges are checked where requests enter (`braidrl.inference.protocol`)."""

    temperature: float = 1.0
    """Softmax temperature; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus mass in (0, 1]."""
    top_k: int = -1
    """Most likely tokens kept; 0 and -1 keep all."""
    min_p: float = 0.0
    """Least probability kept, relative to the most likely token's."""
    max_tokens: int | None = None
    """Most tokens to generate; None: what the context allows."""
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the completion; the one that did is part of it."""
    seed: int | None = None
    """Seed of the draws; None: one from the server's seed and a counter."""
    logprobs: int = 0
    """Candidates to report per generated token."""
    prompt_logprobs: int | None = None
    """Candidates to report per prompt token; None: do not score the prompt."""

    @property
    def truncates(self) -> bool:
        """Whether some tokens are cut off before drawing."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)


class Candidates(NamedTuple):
    """The most likely tokens at one position, best first; cut-off tokens are absent."""

    token_ids: np.ndarray
    """i32[W]."""
    logprobs: np.ndarray
    """f64[W]: in the distribution that is drawn from."""


@dataclass(frozen=True)
class Draws:
    """One drawn token a row, and what it was drawn from."""

    token_ids: list[int]
    logprobs: list[float]
    """Log-probability of each drawn token in the distribution that it was drawn from."""
    candidates: list[Candidates]
    """Of each row, as many as it asked for."""


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """f64[B] in [0, 1): a counter-based generator (splitmix64, Steele et al. 2014) of 53 random bits each."""
    with np.errstate(over="ignore"):
        keys = _mix(np.array([seed & (2**64 - 1) for seed in seeds], np.uint64))
        bits = _mix(keys + (np.array(positions, np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def derived_seed(seed: int, counter: int) -> int:
    """The seed of the `counter`-th request that brings none of its own."""
    with np.errstate(over="ignore"):
        base = _mix(np.array([seed & (2**64 - 1)], np.uint64)) + np.uint64(counter & (2**64 - 1))
        return int(_mix(base ^ np.uint64(GOLDEN))[0])


def processed_logits(logits_BV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """f32[B, V]: logits over temperature with the cut-off tokens at -inf: the softmax is what is drawn from.

    As vLLM does: temperature, then min_p, then top_k (ties stay), then top_p on what is left. A greedy row
    keeps temperature 1 and every token, so that its reported log-probabilities are the model's own.
    """
    scaled_BV = logits_BV.to(torch.float32, copy=True)
    temperatures = [p.temperature or 1.0 for p in params]
    if any(t != 1.0 for t in temperatures):
        scaled_BV /= scaled_BV.new_tensor(temperatures)[:, None]
    cut = [row for row, p in enumerate(params) if p.truncates]
    if cut:
        scaled_BV[cut] = _truncate(scaled_BV[cut], [params[row] for row in cut])
    return scaled_BV


def draw(logits_BV: Tensor, params: Sequence[SamplingParams], uniforms_B: np.ndarray) -> Draws:
    """Draw one token a row by inverting the cumulative distribution; greedy rows take the best.

    Raises `FloatingPointError` when a row's logits hold a NaN or an infinity.
    """
    scaled_BV = processed_logits(logits_BV, params)
    best_B1, argbest_B1 = scaled_BV.max(-1, keepdim=True)
    width = min(max(p.logprobs for p in params), scaled_BV.shape[1])
    values_BK, ids_BK = (best_B1, argbest_B1) if width <= 1 else scaled_BV.topk(width, -1)
    # in place: at this size a new tensor costs as much as the exp
    weights_BV = scaled_BV.sub_(best_B1).exp_()
    tokens_B, totals_B = _invert(weights_BV, torch.from_numpy(uniforms_B).to(scaled_BV.device))
    if not bool(torch.isfinite(totals_B).all()):
        raise FloatingPointError(
            "the model's logits are not finite; its weights have diverged or are damaged"
        )
    greedy_B = torch.tensor([p.temperature == 0 for p in params], device=scaled_BV.device)
    tokens_B = torch.where(greedy_B, argbest_B1[:, 0], tokens_B)
    logprobs_B = weights_BV.gather(1, tokens_B[:, None])[:, 0].double().log() - totals_B.log()
    found_BK = values_BK.double() - best_B1 - totals_B.log()[:, None]
    candidates = _candidates(ids_BK, found_BK, [p.logprobs for p in params])
    return Draws(tokens_B.tolist(), logprobs_B.tolist(), candidates)


def score(logits_BV: Tensor, targets: Sequence[int], width: int) -> list[list[tuple[int, float, int]]]:
    """For each row `(token, log-probability, rank)` of its target and then of the `width` best tokens, at
    temperature 1 over the whole vocabulary. Rank 1 is the best."""
    logprobs_BV = torch.log_softmax(logits_BV.float(), -1)
    target_B1 = torch.tensor(targets, device=logprobs_BV.device)[:, None]
    found_B1 = logprobs_BV.gather(1, target_B1)
    ranks = ((logprobs_BV > found_B1).sum(-1) + 1).tolist()
    best, ids = logprobs_BV.topk(min(width, logprobs_BV.shape[1]), -1)
    return [
        [(target, found, rank), *((i, lp, place) for place, (i, lp) in enumerate(zip(row_ids, row), 1))]
        for target, found, rank, row_ids, row in zip(
            targets, found_B1[:, 0].tolist(), ranks, ids.tolist(), best.tolist()
        )
    ]


def _candidates(ids_BK: Tensor, logprobs_BK: Tensor, wanted: Sequence[int]) -> list[Candidates]:
    """Each row's own copy of what it wants: a view would keep the whole batch alive as long as the request."""
    ids, logprobs = ids_BK.to(torch.int32).cpu().numpy(), logprobs_BK.cpu().numpy()
    counts = np.minimum(wanted, (logprobs > -np.inf).sum(-1)).tolist()
    return [
        Candidates(ids[row, :count].copy(), logprobs[row, :count].copy()) for row, count in enumerate(counts)
    ]


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _truncate(logits_BV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Set what min_p, top_k and top_p cut off to -inf."""
    ratios_B1 = logits_BV.new_tensor([p.min_p for p in params])[
        :, None
    ].log()  # log 0 = -inf keeps every token
    logits_BV = logits_BV.masked_fill(logits_BV < logits_BV.amax(-1, keepdim=True) + ratios_B1, -torch.inf)
    vocabulary = logits_BV.shape[1]
    sizes = [min(p.top_k, vocabulary) if p.top_k > 0 else vocabulary for p in params]
    limited = [size for size in sizes if size < vocabulary]
    if limited:
        best_BK = logits_BV.topk(max(limited), -1).values
        floors = [
            best_BK[row, size - 1] if size < vocabulary else -torch.inf for row, size in enumerate(sizes)
        ]
        logits_BV = logits_BV.masked_fill(logits_BV < logits_BV.new_tensor(floors)[:, None], -torch.inf)
    if any(p.top_p < 1 for p in params):
        ordered_BV, order_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
        before_BV = ordered_BV.softmax(-1, dtype=torch.float64).cumsum(-1).roll(1, -1)
        before_BV[:, 0] = 0
        nucleus_B1 = before_BV.new_tensor([p.top_p if p.top_p < 1 else torch.inf for p in params])[:, None]
        logits_BV = torch.full_like(logits_BV, -torch.inf).scatter(
            1, order_BV, ordered_BV.masked_fill(before_BV >= nucleus_B1, -torch.inf)
        )
    return logits_BV


def _invert(weights_BV: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens i64[B] at which the running sum of the weights first exceeds `uniform * total`; totals f64[B].

    Blocks are summed first, so that the running sum is short and exact in float64, with one pass over V.
    """
    rows, vocabulary = weights_BV.shape
    blocks = -(-vocabulary // BLOCK)
    missing = blocks * BLOCK - vocabulary
    padded = torch.nn.functional.pad(weights_BV, (0, missing)) if missing else weights_BV
    padded = padded.view(rows, blocks, BLOCK)
    sums_BN = padded.sum(-1).double()
    block_B, rest_B = _locate(sums_BN.cumsum(-1), uniforms_B * sums_BN.sum(-1))
    inner_BK = padded[torch.arange(rows, device=padded.device), block_B].double().cumsum(-1)
    inner_B, _ = _locate(inner_BK, rest_B)
    return block_B * BLOCK + inner_B, sums_BN.sum(-1)


def _locate(running_BN: Tensor, targets_B: Tensor) -> tuple[Tensor, Tensor]:
    """First index whose running sum exceeds the target, and the target minus the sum before it. A target that
    rounding lifted to the total falls on the last entry of positive weight."""
    total_B = running_BN[:, -1]
    targets_B = torch.minimum(targets_B, total_B.nextafter(torch.zeros_like(total_B)))
    index_B = torch.searchsorted(running_BN, targets_B[:, None], right=True)[:, 0].clamp_(
        max=running_BN.shape[1] - 1
    )
    before_B = torch.where(index_B > 0, running_BN.gather(1, (index_B - 1).clamp(min=0)[:, None])[:, 0], 0.0)
    return index_B, targets_B - before_B
