"""Token sampling: pure functions of logits with counter-based random numbers instead of stateful generators.

B is the number of rows, V the vocabulary size. A row's sample depends only on its logits, seed and position, not on the
other rows of the batch.
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
    """Sampling parameters of one request. The HTTP routes check their ranges (`braidrl.inference.routes`)."""

    temperature: float = 1.0
    """Softmax temperature; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus mass in (0, 1]."""
    top_k: int = -1
    """Number of most likely tokens to keep; 0 and -1 keep all."""
    min_p: float = 0.0
    """Minimum probability of a kept token, relative to the most likely token."""
    max_tokens: int | None = None
    """Maximum number of generated tokens; None: limited by the context."""
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the completion. The stop token is included in it."""
    seed: int | None = None
    """Random seed; None: derived from the server's seed and a counter."""
    logprobs: int = 0
    """Number of candidates to report per generated token."""
    prompt_logprobs: int | None = None
    """Number of candidates to report per prompt token; None: the prompt is not scored."""

    @property
    def truncates(self) -> bool:
        """True if tokens may be cut off before sampling."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)


class Candidates(NamedTuple):
    """Most likely tokens at one position, best first, without cut-off tokens."""

    token_ids: np.ndarray
    """Token ids, i32[W]."""
    logprobs: np.ndarray
    """Log-probs under the sampling distribution, f64[W]."""


@dataclass(frozen=True)
class Draws:
    """One sampled token per row with its log-prob and candidates."""

    token_ids: list[int]
    logprobs: list[float]
    """Log-prob of each sampled token under the sampling distribution."""
    candidates: list[Candidates]
    """Candidates of each row; their number is the request's `logprobs`."""


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """Return random numbers f64[B] in [0, 1) with 53 bits each, as a function of seed and position.

    The generator is splitmix64 (Steele et al. 2014).
    """
    with np.errstate(over="ignore"):
        keys = _mix(np.array([seed & (2**64 - 1) for seed in seeds], np.uint64))
        bits = _mix(keys + (np.array(positions, np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def derived_seed(seed: int, counter: int) -> int:
    """Return the seed for a request without a seed. `counter` is the number of requests so far."""
    with np.errstate(over="ignore"):
        base = _mix(np.array([seed & (2**64 - 1)], np.uint64)) + np.uint64(counter & (2**64 - 1))
        return int(_mix(base ^ np.uint64(GOLDEN))[0])


def processed_logits(logits_BV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Return f32[B, V]: logits divided by temperature, cut-off tokens at -inf. Tokens are sampled from their softmax.

    The order is vLLM's: temperature, min_p, top_k (keeping ties), then top_p on the remaining tokens. Greedy rows keep
    temperature 1 and all tokens, so their reported log-probs are those of the model.
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
    """Sample one token per row by inverting the cumulative distribution. Greedy rows take the most likely token.

    Raises `FloatingPointError` if the logits of a row contain NaN or infinity.
    """
    scaled_BV = processed_logits(logits_BV, params)
    best_B1, argbest_B1 = scaled_BV.max(-1, keepdim=True)
    width = min(max(p.logprobs for p in params), scaled_BV.shape[1])
    values_BK, ids_BK = (best_B1, argbest_B1) if width <= 1 else scaled_BV.topk(width, -1)
    # In place: at this size, allocating a new tensor costs as much as the exp.
    weights_BV = scaled_BV.sub_(best_B1).exp_()
    tokens_B, totals_B = _invert(weights_BV, torch.from_numpy(uniforms_B).to(scaled_BV.device))
    if not bool(torch.isfinite(totals_B).all()):
        raise FloatingPointError(
            "the model's logits are not finite: its weights have diverged or are damaged; restart from an earlier "
            "checkpoint"
        )
    greedy_B = torch.tensor([p.temperature == 0 for p in params], device=scaled_BV.device)
    tokens_B = torch.where(greedy_B, argbest_B1[:, 0], tokens_B)
    logprobs_B = weights_BV.gather(1, tokens_B[:, None])[:, 0].double().log() - totals_B.log()
    found_BK = values_BK.double() - best_B1 - totals_B.log()[:, None]
    candidates = _candidates(ids_BK, found_BK, [p.logprobs for p in params])
    return Draws(tokens_B.tolist(), logprobs_B.tolist(), candidates)


def score(logits_BV: Tensor, targets: Sequence[int], width: int) -> list[list[tuple[int, float, int]]]:
    """Return `(token, log-prob, rank)` of each row's target and then of its `width` most likely tokens.

    Temperature is 1 and no token is cut off. Rank 1 is the most likely token.
    """
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
    """Return the first `wanted` candidates of each row, as copies: a view would keep the arrays of the batch alive."""
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
    """Set tokens cut off by min_p, top_k and top_p to -inf."""
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
        # Mass before each token, so that the token that crosses top_p is kept.
        before_BV = ordered_BV.softmax(-1, dtype=torch.float64).cumsum(-1).roll(1, -1)
        before_BV[:, 0] = 0
        nucleus_B1 = before_BV.new_tensor([p.top_p if p.top_p < 1 else torch.inf for p in params])[:, None]
        logits_BV = torch.full_like(logits_BV, -torch.inf).scatter(
            1, order_BV, ordered_BV.masked_fill(before_BV >= nucleus_B1, -torch.inf)
        )
    return logits_BV


def _invert(weights_BV: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens i64[B] at which the cumulative weight first exceeds `uniform * total`, and the totals f64[B].

    Blocks are summed first, then searched. This needs one pass over V and a cumulative sum over V / BLOCK entries,
    which is short enough for float64.
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
    """Return the first index whose cumulative sum exceeds the target, and the target minus the sum before it."""
    total_B = running_BN[:, -1]
    # Rounding can lift a target to the total. Clamp it so that it falls on the last entry of positive weight.
    targets_B = torch.minimum(targets_B, total_B.nextafter(torch.zeros_like(total_B)))
    index_B = torch.searchsorted(running_BN, targets_B[:, None], right=True)[:, 0].clamp_(
        max=running_BN.shape[1] - 1
    )
    before_B = torch.where(index_B > 0, running_BN.gather(1, (index_B - 1).clamp(min=0)[:, None])[:, 0], 0.0)
    return index_B, targets_B - before_B
