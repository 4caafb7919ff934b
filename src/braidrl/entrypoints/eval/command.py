"""`braid eval @ FILE`: evaluate a model, a checkpoint or an endpoint on evaluation sources."""

import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.core.load import load_config, to_toml
from braidrl.configs.eval_command import SHARED_COPIES, EvalCommandConfig
from braidrl.entrypoints.eval.target import Target, orchestrator_config, resolve
from braidrl.launch.contract import Process
from braidrl.launch.local import LocalLauncher
from braidrl.launch.options import LaunchOptions, parse_options
from braidrl.launch.supervisor import ProcessFailed, Supervisor
from braidrl.launch.wiring import POLL_SECONDS
from braidrl.monitors.record import recorded
from braidrl.utils.process import available_cores, environment
from braidrl.utils.run_folder import RunFolder

FLAGS = """\
flags of this command:
  --dry-run   print the resolved config and start nothing
  --clean     remove the contents of output_dir first
  --verbose   print the log, including debug messages"""

CONFIG = "eval.toml"
"""File name of the resolved config. Its presence identifies the folder of an evaluation."""
SHOWN_ERRORS = 3
"""Maximum number of different errors to print."""

Result = TypeVar("Result")


class SourceFailed(RuntimeError):
    """All episodes of a source failed."""


def main(args: list[str]) -> int:
    """Run an evaluation. Exit codes: 0 finished, 1 the server or all episodes of a source failed, 2 invalid
    configuration, 130 interrupted.
    """
    if "--help" in args or "-h" in args:
        print(f"{FLAGS}\n")
    options = parse_options(args)
    if options.resume:
        raise ConfigError(
            "--resume", "an evaluation cannot be resumed; omit --resume (`braid rl` resumes training runs)"
        )
    config = load_config(EvalCommandConfig, options.config_args, "braid eval", SHARED_COPIES)
    config, target = resolve(config)
    if options.dry_run:
        print(to_toml(config), end="")
        return 0
    return launch(config, target, options)


def launch(config: EvalCommandConfig, target: Target, options: LaunchOptions) -> int:
    """Serve the model if necessary, evaluate it and print the results. Return the exit code."""
    run = RunFolder(config.output_dir)
    open_output(run, target.version, options.clean)
    run.configs.mkdir(parents=True, exist_ok=True)
    (run.configs / CONFIG).write_text(to_toml(config))
    try:
        with recorded(run):
            target.prepare(config.model.dtype)
            with Supervisor(LocalLauncher(config.stop_timeout)) as supervisor:
                if target.served:
                    serve(supervisor, config, run)
                metrics = evaluate(config, target, supervisor, options.verbose)
            print(f"episodes: {run.eval_episodes(target.version)}\nmetrics: {run.metrics('eval')}")
            check_sources(config, metrics)
    except (ProcessFailed, SourceFailed) as failure:
        print(f"braid eval: error: {failure}", file=sys.stderr)
        return 1
    return 0


def check_sources(config: EvalCommandConfig, metrics: dict[str, float]) -> None:
    """Raise `SourceFailed` if all episodes of a source failed."""
    names = [str(source.name) for source in config.source]
    failed = [name for name in names if metrics[f"eval/{name}/errors"] == metrics[f"eval/{name}/num"]]
    if failed:
        raise SourceFailed(f"every episode of {', '.join(failed)} failed")


def open_output(run: RunFolder, version: int, clean: bool) -> None:
    """Prepare the output folder. Raises `ConfigError` if something other than an evaluation, or an evaluation of the
    same version, would be overwritten.
    """
    from braidrl.monitors.metrics import read_metrics

    occupied = run.root.is_dir() and any(run.root.iterdir())
    if occupied and not (run.configs / CONFIG).exists():
        raise ConfigError(
            "output_dir",
            f"{run.root} is not empty and not the folder of an evaluation; set another output_dir",
        )
    if clean:
        shutil.rmtree(run.root, ignore_errors=True)
    if any(line["step"] == version for line in read_metrics(run.metrics("eval"))):
        raise ConfigError(
            "output_dir",
            f"{run.root} already contains an evaluation of v{version}; remove it with --clean, or set another "
            "output_dir",
        )


def serve(supervisor: Supervisor, config: EvalCommandConfig, run: RunFolder) -> None:
    """Start an inference server with the config's model."""
    path = run.configs / "inference.toml"
    path.write_text(to_toml(config.inference))
    threads = config.inference.threads or available_cores()
    args = ("inference", "@", str(path))
    supervisor.start(Process("inference", args, run.log("inference"), environment(threads), ends=False))


def evaluate(
    config: EvalCommandConfig, target: Target, supervisor: Supervisor, verbose: bool
) -> dict[str, float]:
    """Run the episodes, print the table of results and return the metrics.

    Raises:
        ProcessFailed: the started server failed.
        ConfigError: the endpoint of `client.base_url` cannot be used.
    """
    from braidrl.orchestrator.engines.pool import ReplicaError
    from braidrl.report.evaluation import evaluation_table
    from braidrl.report.table import print_table
    from braidrl.utils.log import configure_logging

    log = RunFolder(config.output_dir).log("eval")
    log.parent.mkdir(parents=True, exist_ok=True)
    configure_logging(verbose, None if verbose else log)
    try:
        metrics, errors = asyncio.run(_supervised(_run_episodes(config, target), supervisor))
    except ReplicaError as error:
        raise ConfigError("client.base_url", str(error)) from None
    header, *rows = evaluation_table(metrics)
    print_table(header, rows)
    for text, count in errors.most_common(SHOWN_ERRORS):
        print(f"{count} failed: {text}")
    return metrics


async def _run_episodes(config: EvalCommandConfig, target: Target) -> tuple[dict[str, float], Counter[str]]:
    """Run all episodes. Return the metrics and the number of episodes that failed with each error."""
    from rich.console import Console

    from braidrl.orchestrator.envs.source import EvalEnv, FinishedEpisode
    from braidrl.orchestrator.eval.standalone import open_evaluation
    from braidrl.orchestrator.eval.summary import reward_of
    from braidrl.report.episodes import EpisodeProgress

    errors: Counter[str] = Counter()

    def ended(env: EvalEnv, finished: FinishedEpisode) -> None:
        reward = reward_of(finished)
        progress.ended(reward)
        if reward is None:
            errors[f"{env.name}: {finished.error or 'the episode has no reward'}"] += 1

    async with open_evaluation(orchestrator_config(config, target), target.model, ended) as evaluator:
        total = sum(len(env.tasks) * env.source.rollouts_per_task for env in evaluator.envs)
        with EpisodeProgress(total, Console()) as progress:
            return await evaluator.evaluate(target.version), errors


async def _supervised(work: Coroutine[Any, Any, Result], supervisor: Supervisor) -> Result:
    """Run `work` and return its result. Raises `ProcessFailed` if a supervised process fails first."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            supervisor.check()
            await asyncio.wait({task}, timeout=POLL_SECONDS)
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})
