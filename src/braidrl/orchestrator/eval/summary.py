"""What the episodes of an evaluation say: means with their uncertainty, pass@k."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from braidrl.configs.eval import EvalSettings
from braidrl.orchestrator.envs.source import FinishedEpisode

Z95 = 1.959963984540054
"""97.5% quantile of the normal distribution."""
ROUNDING = 1e-9
"""By how much a reward may miss the one that counts as success: weighted sums of floats rarely hit it exactly."""


def summarize(tasks: Sequence[Sequence[FinishedEpisode]], settings: EvalSettings) -> dict[str, float]:
    """Figures of one source, by name, from the attempts at each of its tasks.

    An attempt counts by the mean reward of its traces. One that failed (an error, a reward that is missing or no
    number) counts in `errors` alone: it is no wrong answer. `reward/ci95` is half the width of the 95% confidence
    interval of the mean: 1.96 standard errors of the means by task, because attempts at one task are not independent.
    `pass@k` is the mean of `pass_at_k` over the tasks with k good attempts or more.
    """
    rewards = [[reward for each in attempts if (reward := reward_of(each)) is not None] for attempts in tasks]
    rewards = [values for values in rewards if values]
    num = sum(map(len, tasks))
    good = sum(map(len, rewards))
    summary = {"num": float(num), "errors": float(num - good)}
    if not good:
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
    """Chance that at least one of `k` attempts at a task succeeds, estimated without bias from `successes` among `num`.

    It is 1 - C(num - successes, k) / C(num, k), the share of all choices of k attempts that hold a success
    (arXiv:2107.03374). `k` is between 1 and `num`.
    """
    if not 1 <= k <= num:
        raise ValueError(f"pass@{k} cannot be estimated from {num} attempts; k from 1 to {num} can")
    return 1.0 - math.comb(num - successes, k) / math.comb(num, k)


def powers_of_two(limit: int) -> Iterator[int]:
    """1, 2, 4, ... up to `limit`."""
    return (2**exponent for exponent in range(limit.bit_length()))


def reward_of(finished: FinishedEpisode) -> float | None:
    """Mean reward of an episode's traces; None where it failed."""
    traces = finished.episode.traces
    unscored = any(reward is None for trace in traces for reward in trace.rewards.values())
    if finished.error is not None or unscored or not traces:
        return None
    mean = statistics.fmean(trace.reward for trace in traces)
    return mean if math.isfinite(mean) else None


def _succeeds(reward: float, settings: EvalSettings) -> bool:
    return reward >= settings.success_reward - ROUNDING


def _means(finished: Sequence[FinishedEpisode]) -> dict[str, float]:
    """What is the mean over traces, or over episodes, and needs no care."""
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
