"""`braid eval @ FILE`: play evaluation sources with a model, a checkpoint or an endpoint, and report."""

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
flags of the command itself:
  --dry-run   print the resolved config and start nothing
  --clean     remove what lies in output_dir first
  --verbose   show the log as well, with debug messages"""

CONFIG = "eval.toml"
"""The resolved config, by which an evaluation's folder is known."""
SHOWN_ERRORS = 3
"""Most kinds of errors that are printed."""

Result = TypeVar("Result")


class SourceFailed(RuntimeError):
    """All episodes of a source ended in an error."""


def main(args: list[str]) -> int:
    """Exit codes: 0 done, 1 all episodes of a source failed or the server did, 2 bad configuration, 130 interrupted."""
    if "--help" in args or "-h" in args:
        print(f"{FLAGS}\n")
    options = parse_options(args)
    if options.resume:
        raise ConfigError("--resume", "an evaluation starts over; to go on with a run use `braid rl`")
    config = load_config(EvalCommandConfig, options.config_args, "braid eval", SHARED_COPIES)
    config, target = resolve(config)
    if options.dry_run:
        print(to_toml(config), end="")
        return 0
    return launch(config, target, options)


def launch(config: EvalCommandConfig, target: Target, options: LaunchOptions) -> int:
    """Serve the model if need be, evaluate it, print the table."""
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
    """Raise `SourceFailed` where sources have no reward at all."""
    names = [str(source.name) for source in config.source]
    dead = [name for name in names if metrics[f"eval/{name}/errors"] == metrics[f"eval/{name}/num"]]
    if dead:
        raise SourceFailed(f"every episode of {', '.join(dead)} failed")


def open_output(run: RunFolder, version: int, clean: bool) -> None:
    """Make the output folder ready. Raises `ConfigError` where something would be overwritten."""
    from braidrl.monitors.metrics import read_metrics

    occupied = run.root.is_dir() and any(run.root.iterdir())
    if occupied and not (run.configs / CONFIG).exists():
        raise ConfigError(
            "output_dir", f"{run.root} holds something else; give the evaluation a folder of its own"
        )
    if clean:
        shutil.rmtree(run.root, ignore_errors=True)
    if any(line["step"] == version for line in read_metrics(run.metrics("eval"))):
        raise ConfigError(
            "output_dir",
            f"{run.root} holds an evaluation of v{version} already; remove it with --clean, or set another output_dir",
        )


def serve(supervisor: Supervisor, config: EvalCommandConfig, run: RunFolder) -> None:
    """Start the embedded engine, as `braid rl` does."""
    path = run.configs / "inference.toml"
    path.write_text(to_toml(config.inference))
    threads = config.inference.threads or available_cores()
    args = ("inference", "@", str(path))
    supervisor.start(Process("inference", args, run.log("inference"), environment(threads), ends=False))


def evaluate(
    config: EvalCommandConfig, target: Target, supervisor: Supervisor, verbose: bool
) -> dict[str, float]:
    """Play the episodes and print the table; the line of metrics.

    Raises `ProcessFailed` when the server dies meanwhile, and `ConfigError` where the one of somebody else cannot be
    used.
    """
    from braidrl.orchestrator.engines.pool import ReplicaError
    from braidrl.report.evaluation import evaluation_table
    from braidrl.report.table import print_table
    from braidrl.utils.log import configure_logging

    log = RunFolder(config.output_dir).log("eval")
    log.parent.mkdir(parents=True, exist_ok=True)
    configure_logging(verbose, None if verbose else log)
    try:
        metrics, errors = asyncio.run(_guarded(_play(config, target), supervisor))
    except ReplicaError as error:
        raise ConfigError("client.base_url", str(error)) from None
    header, *rows = evaluation_table(metrics)
    print_table(header, rows)
    for text, count in errors.most_common(SHOWN_ERRORS):
        print(f"{count} failed: {text}")
    return metrics


async def _play(config: EvalCommandConfig, target: Target) -> tuple[dict[str, float], Counter[str]]:
    """The metrics, and how often each error ended an episode."""
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
            errors[f"{env.name}: {finished.error or 'it has no reward'}"] += 1

    async with open_evaluation(orchestrator_config(config, target), target.model, ended) as evaluator:
        total = sum(len(env.tasks) * env.source.rollouts_per_task for env in evaluator.envs)
        with EpisodeProgress(total, Console()) as progress:
            return await evaluator.evaluate(target.version), errors


async def _guarded(work: Coroutine[Any, Any, Result], supervisor: Supervisor) -> Result:
    """The result of `work`, unless a process that it needs dies first."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            supervisor.check()
            await asyncio.wait({task}, timeout=POLL_SECONDS)
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})
