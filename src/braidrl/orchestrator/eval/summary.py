"""Summary statistics of an evaluation: means, confidence interval and pass@k."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from braidrl.configs.eval import EvalSettings
from braidrl.orchestrator.envs.source import FinishedEpisode

Z95 = 1.959963984540054
"""97.5% quantile of the normal distribution."""
ROUNDING = 1e-9
"""Tolerance when a reward is compared with `success_reward`: weighted sums of floats are rarely exact."""


def summarize(tasks: Sequence[Sequence[FinishedEpisode]], settings: EvalSettings) -> dict[str, float]:
    """Compute the metrics of one source.

    The reward of an attempt is the mean over its traces. Failed attempts (an error, a missing or non-finite reward)
    count only in `errors`, not as wrong answers. `reward/ci95` is half the width of the 95% confidence interval of the
    mean: 1.96 standard errors of the per-task means, since attempts at one task are not independent. `pass@k` is the
    mean of `pass_at_k` over the tasks with at least k valid attempts.

    Args:
        tasks: attempts at each task.

    Returns:
        Value of each metric. Without a valid attempt, only `num` and `errors`.
    """
    rewards = [[reward for each in attempts if (reward := reward_of(each)) is not None] for attempts in tasks]
    rewards = [values for values in rewards if values]
    num = sum(map(len, tasks))
    valid = sum(map(len, rewards))
    summary = {"num": float(num), "errors": float(num - valid)}
    if not valid:
        return summary
    means = [statistics.fmean(values) for values in rewards]
    every = [reward for values in rewards for reward in values]
    summary["reward/mean"] = statistics.fmean(every)
    summary["reward/std"] = statistics.pstdev(every)
    summary["reward/ci95"] = Z95 * statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    for k in powers_of_two(settings.rollouts_per_task):
        passed = [
            pass_at_k(len(values), sum(_succeeds(reward, settings) for reward in values), k)
            for values in rewards
            if len(values) >= k
        ]
        if passed:
            summary[f"pass@{k}"] = statistics.fmean(passed)
    finished = [each for attempts in tasks for each in attempts if reward_of(each) is not None]
    return summary | _means(finished)


def pass_at_k(num: int, successes: int, k: int) -> float:
    """Return an unbiased estimate of the probability that at least one of `k` attempts at a task succeeds.

    1 - C(num - successes, k) / C(num, k), the share of all subsets of k attempts that contain a success
    (arXiv:2107.03374).

    Args:
        num: number of attempts.
        successes: number of successful attempts, in [0, num].
        k: in [1, num]. Any other value raises `ValueError`.
    """
    if not 1 <= k <= num:
        raise ValueError(f"pass@{k} cannot be estimated from {num} attempts; choose k from 1 to {num}")
    return 1.0 - math.comb(num - successes, k) / math.comb(num, k)


def powers_of_two(limit: int) -> Iterator[int]:
    """Yield 1, 2, 4, ... up to and including `limit`."""
    return (2**exponent for exponent in range(limit.bit_length()))


def reward_of(finished: FinishedEpisode) -> float | None:
    """Return the mean reward of an episode's traces, or None if the episode failed."""
    traces = finished.episode.traces
    unscored = any(reward is None for trace in traces for reward in trace.rewards.values())
    if finished.error is not None or unscored or not traces:
        return None
    mean = statistics.fmean(trace.reward for trace in traces)
    return mean if math.isfinite(mean) else None


def _succeeds(reward: float, settings: EvalSettings) -> bool:
    return reward >= settings.success_reward - ROUNDING


def _means(finished: Sequence[FinishedEpisode]) -> dict[str, float]:
    """Return plain means over traces (seconds: over episodes)."""
    values: dict[str, list[float]] = defaultdict(list)
    for each in finished:
        values["seconds/mean"].append(each.seconds)
        for trace in each.episode.traces:
            usage = trace.usage
            values["truncated"].append(trace.is_truncated)
            values["tokens/mean"].append(usage.completion_tokens if usage else 0)
            values["turns/mean"].append(trace.num_turns)
            for name, value in trace.metrics.items():
                if value is not None:
                    values[f"metric/{name}"].append(value)
    return {name: statistics.fmean(numbers) for name, numbers in values.items()}
