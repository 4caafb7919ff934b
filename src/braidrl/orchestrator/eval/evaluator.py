"""Evaluation of one policy version on the evaluation sources."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import verifiers.v1 as vf

from braidrl.configs.eval import EvalConfig
from braidrl.monitors.metrics import MetricsWriter, read_metrics
from braidrl.orchestrator.envs.source import EvalEnv, FinishedEpisode
from braidrl.orchestrator.eval.summary import summarize
from braidrl.orchestrator.pipeline.records import episode_record, write_records
from braidrl.report.evaluation import evaluation_lines
from braidrl.utils.run_folder import RunFolder

logger = logging.getLogger(__name__)


def _ignore(env: EvalEnv, finished: FinishedEpisode) -> None:
    """Do nothing: the default of `on_episode`."""


class Evaluator:
    """Runs evaluation sources with the served policy, using the same tasks and seeds for every version.

    Args:
        max_concurrent: maximum number of concurrent evaluation episodes. Training episodes have a separate limit.
        on_episode: called when an episode ends.
    """

    def __init__(
        self,
        envs: Sequence[EvalEnv],
        run: RunFolder,
        *,
        max_concurrent: int,
        on_episode: Callable[[EvalEnv, FinishedEpisode], None] = _ignore,
    ) -> None:
        self.envs = list(envs)
        self.run_folder = run
        self.slots = asyncio.Semaphore(max_concurrent)
        self.on_episode = on_episode
        self.running = 0
        """Number of episodes in flight."""
        self.metrics = MetricsWriter(run.metrics("eval"))

    def recorded(self, version: int) -> bool:
        """Return True if this version has been evaluated, possibly by an earlier process of the run."""
        return any(line["step"] == version for line in read_metrics(self.metrics.path))

    async def evaluate(self, version: int, envs: Sequence[EvalEnv] | None = None) -> dict[str, float]:
        """Evaluate the served policy, record its episodes and log its metrics.

        Args:
            version: version of the served policy.
            envs: sources to evaluate, or None for all.

        Returns:
            Metrics `eval/seconds` and `eval/SOURCE/...` (`summarize`).
        """
        envs = self.envs if envs is None else envs
        started = time.perf_counter()
        results = await asyncio.gather(*(self._run(env) for env in envs))
        metrics = {"eval/seconds": time.perf_counter() - started}
        records = []
        for env, tasks in zip(envs, results, strict=True):
            summary = summarize(tasks, env.source)
            metrics |= {f"eval/{env.name}/{name}": value for name, value in summary.items()}
            finished = [each for attempts in tasks for each in attempts]
            records += [episode_record(each, env=env.name, step=version, outcome="eval") for each in finished]
        path = self.run_folder.eval_episodes(version)
        path.unlink(missing_ok=True)  # remains of an interrupted evaluation
        await write_records(path, records)
        self.metrics.log(version, metrics)
        table = "\n".join(f"  {line}" for line in evaluation_lines(metrics))
        logger.info("evaluation of v%d, %.0f s:\n%s", version, metrics["eval/seconds"], table)
        return metrics

    async def _run(self, env: EvalEnv) -> list[list[FinishedEpisode]]:
        """Run all attempts at all tasks of a source. Returns the episodes of each task."""
        attempts = range(env.source.rollouts_per_task)
        keys = [f"eval/{env.name}/{index}" for index in range(len(env.tasks))]
        return await asyncio.gather(
            *(
                asyncio.gather(*(self._episode(env, task, f"{key}/{number}") for number in attempts))
                for key, task in zip(keys, env.tasks, strict=True)
            )
        )

    async def _episode(self, env: EvalEnv, task: vf.Task, key: str) -> FinishedEpisode:
        async with self.slots:
            self.running += 1
            try:
                finished = await env.run(task, key)
            finally:
                self.running -= 1
        self.on_episode(env, finished)
        return finished


class LiveEvaluator(Evaluator):
    """Evaluator of a running job, with the schedule of versions and sources."""

    def __init__(
        self, envs: Sequence[EvalEnv], config: EvalConfig, run: RunFolder, *, max_steps: int
    ) -> None:
        super().__init__(envs, run, max_concurrent=config.max_concurrent)
        self.config = config
        self.max_steps = max_steps

    def due(self, version: int) -> list[EvalEnv]:
        """Return the sources that are due for evaluation at this version."""
        if version == 0:
            return self.envs if self.config.base_model else []
        if version == self.max_steps and self.config.final:
            return self.envs
        return [env for env in self.envs if env.source.interval and version % env.source.interval == 0]

    def missed(self, done: int) -> int | None:
        """Return the version whose evaluation was interrupted, or None.

        This is the latest due version before `done`, if it is unrecorded and its weights still exist.
        """
        due = [
            version
            for version in self.run_folder.published("weights")
            if version < done and self.due(version)
        ]
        return due[-1] if due and not self.recorded(due[-1]) else None

    async def visit(self, version: int) -> None:
        """Evaluate `version` if it is due and not recorded yet."""
        if (envs := self.due(version)) and not self.recorded(version):
            await self.evaluate(version, envs)
