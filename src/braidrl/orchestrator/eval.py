"""Evaluation on the live policy."""

import asyncio
import logging
import math
import statistics
import time
from collections import defaultdict

import verifiers.v1 as vf

from braidrl.configs.eval import EvalConfig
from braidrl.monitors.metrics import MetricsWriter
from braidrl.orchestrator.envs import EvalEnv, Finished
from braidrl.orchestrator.records import episode_record, write_records
from braidrl.utils.run_folder import RunFolder

logger = logging.getLogger(__name__)

Z95 = 1.959963984540054
"""97.5% quantile of the normal distribution."""


class Evaluator:
    """Runs every evaluation source on one policy version, with the same seeds for every version."""

    def __init__(
        self, envs: list[EvalEnv], config: EvalConfig, run: RunFolder, *, max_steps: int, max_concurrent: int
    ) -> None:
        self.envs = envs
        self.config = config
        self.run_folder = run
        self.max_steps = max_steps
        self.slots = asyncio.Semaphore(max_concurrent)
        self.running = 0
        """Episodes in flight."""
        self.metrics = MetricsWriter(run.metrics("eval"))

    def due(self, version: int) -> bool:
        """Whether this version is to be evaluated."""
        if not self.envs:
            return False
        if version == 0:
            return self.config.base_model
        if version == self.max_steps and self.config.final:
            return True
        return self.config.interval is not None and version % self.config.interval == 0

    async def evaluate(self, version: int) -> None:
        """Evaluate `version` if it is due; record the episodes and log one line of metrics."""
        if not self.due(version):
            return
        started = time.perf_counter()
        results = await asyncio.gather(*(self._run(env) for env in self.envs))
        metrics: dict[str, float] = {"eval/seconds": time.perf_counter() - started}
        records = []
        for env, finished in zip(self.envs, results, strict=True):
            metrics |= {f"eval/{env.name}/{name}": value for name, value in summarize(finished).items()}
            records += [episode_record(each, env=env.name, step=version, outcome="eval") for each in finished]
        path = self.run_folder.eval_episodes(version)
        path.unlink(missing_ok=True)
        await write_records(path, records)
        self.metrics.log(version, metrics)
        for env in self.envs:
            reward = metrics.get(f"eval/{env.name}/reward/mean", math.nan)
            failed, num = metrics[f"eval/{env.name}/errors"], metrics[f"eval/{env.name}/num"]
            logger.info(
                "eval of v%d: %s reward %.4f over %d episodes, %d failed",
                version,
                env.name,
                reward,
                num,
                failed,
            )

    async def _run(self, env: EvalEnv) -> list[Finished]:
        async def one(task: vf.Task, key: str) -> Finished:
            async with self.slots:
                self.running += 1
                try:
                    return await env.run(task, key)
                finally:
                    self.running -= 1

        rollouts = range(env.source.rollouts_per_task)
        return await asyncio.gather(
            *(
                one(task, f"eval/{env.name}/{index}/{n}")
                for index, task in enumerate(env.tasks)
                for n in rollouts
            )
        )


def summarize(finished: list[Finished]) -> dict[str, float]:
    """Reward over the episodes without error, and how many had one.

    `reward/ci95` is half the width of the 95% confidence interval of the mean: 1.96 standard errors of the
    means by task, because attempts at one task are not independent. An episode with several traces counts by
    their mean.
    """
    good = [each for each in finished if each.error is None]
    by_task: dict[str | None, list[float]] = defaultdict(list)
    metrics: dict[str, list[float]] = defaultdict(list)
    for each in good:
        by_task[each.episode.task.hash].append(
            statistics.fmean(trace.reward for trace in each.episode.traces)
        )
        for trace in each.episode.traces:
            for name, value in trace.metrics.items():
                if value is not None:
                    metrics[f"metric/{name}"].append(value)
    traces = [trace for each in good for trace in each.episode.traces]
    summary = {"num": float(len(finished)), "errors": float(len(finished) - len(good))}
    if not good:
        return summary
    rewards = [reward for values in by_task.values() for reward in values]
    means = [statistics.fmean(values) for values in by_task.values()]
    summary["reward/mean"] = statistics.fmean(rewards)
    summary["reward/std"] = statistics.pstdev(rewards)
    summary["reward/ci95"] = Z95 * statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    summary["truncated"] = sum(trace.is_truncated for trace in traces) / len(traces)
    return summary | {name: statistics.fmean(values) for name, values in metrics.items()}
