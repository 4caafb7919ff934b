"""`braid rl @ FILE`: the whole run. Starts inference, orchestrator and trainer, shows progress, stops them together."""

import socket
import sys
import time
from pathlib import Path

from braidrl.configs.load import load_config, to_toml
from braidrl.configs.rl import SHARED_COPIES, RLConfig
from braidrl.entrypoints.options import RUN_FLAGS, Options, parse_options
from braidrl.entrypoints.resume import open_run_folder
from braidrl.entrypoints.supervisor import ProcessFailed, Supervisor
from braidrl.transport.weights import forget_weights_before
from braidrl.utils.functions import check_functions
from braidrl.utils.renderer import renderer_options
from braidrl.utils.retention import prune_checkpoints
from braidrl.utils.run_folder import RunFolder
from braidrl.utils.threads import available_cores, environment

POLL_SECONDS = 0.2


def main(args: list[str]) -> int:
    """Exit codes: 0 done, 1 a process failed, 2 bad configuration, 130 interrupted."""
    if "--help" in args or "-h" in args:
        print(f"flags of the run itself:\n{RUN_FLAGS}\n")
    options = parse_options(args)
    config = load_config(RLConfig, options.config_args, "braid rl", SHARED_COPIES)
    resolved = resolve(config)
    if options.dry_run:
        print(to_toml(resolved), end="")
        return 0
    return launch(resolved, options)


def resolve(config: RLConfig) -> RLConfig:
    """Check environment blocks against verifiers, the renderer against its family, and that the user's functions are
    there; fill in what the processes need of each other."""
    from braidrl.configs.resolve import resolve_environments

    config = config.model_copy(deep=True)
    check_functions(config)
    resolve_environments(config.orchestrator, "orchestrator.")
    renderer_options(config.orchestrator.renderer, "orchestrator.renderer")
    if "port" not in config.inference.model_fields_set:
        config.inference.port = free_port(config.inference.host)
    if "base_url" not in config.orchestrator.client.model_fields_set:
        config.orchestrator.client.base_url = [f"http://{config.inference.host}:{config.inference.port}/v1"]
        config.orchestrator.client.api_key_var = config.inference.api_key_var
    share_cores(config)
    return config


def share_cores(config: RLConfig) -> None:
    """On one machine, overlapping processes split the cores; strictly on-policy ones take turns with all of them."""
    cores = available_cores()
    share = cores if config.orchestrator.max_off_policy_steps == 0 else max(1, cores // 2)
    for process in (config.trainer, config.inference):
        process.threads = process.threads or share


def launch(config: RLConfig, options: Options) -> int:
    """Run the three processes to their end."""
    run = RunFolder(config.output_dir)
    resume_step = open_run_folder(run, options)
    write_configs(config, run)
    print(
        f"run folder {run.root}" + (f", continuing after step {resume_step}" if resume_step else ""),
        flush=True,
    )
    try:
        with Supervisor(config.stop_timeout) as supervisor:
            start_processes(supervisor, config, run, resume_step, options.verbose)
            watch(supervisor, config, run, resume_step)
    except ProcessFailed as failure:
        print(
            f"braid rl: error: {failure}\nthe other processes were stopped; continue with --resume",
            file=sys.stderr,
        )
        return 1
    prune_checkpoints(run, config.checkpoint)
    forget_weights_before(run, config.max_steps, keep=run.published("checkpoints"))
    print(f"done: {config.max_steps} steps; the trained model lies in {run.weights(config.max_steps)}")
    return 0


def write_configs(config: RLConfig, run: RunFolder) -> None:
    """Save the resolved config beside the run: `rl.toml`, and one file a process."""
    run.configs.mkdir(parents=True, exist_ok=True)
    for name, part in (
        ("rl", config),
        ("trainer", config.trainer),
        ("orchestrator", config.orchestrator),
        ("inference", config.inference),
    ):
        process_config(run, name).write_text(to_toml(part))


def process_config(run: RunFolder, name: str) -> Path:
    return run.configs / f"{name}.toml"


def start_processes(
    supervisor: Supervisor, config: RLConfig, run: RunFolder, resume_step: int, verbose: bool
) -> None:
    """Start all three at once; each waits for what it needs of the others."""
    threads = {"inference": config.inference.threads, "orchestrator": None, "trainer": config.trainer.threads}
    for name, count in threads.items():
        args = [name, "@", str(process_config(run, name))]
        if resume_step and name != "inference":
            args += ["--resume-step", str(resume_step)]
        if verbose:
            args.append("--verbose")
        supervisor.start(name, args, run.log(name), environment(count), ends=name != "inference")


def watch(supervisor: Supervisor, config: RLConfig, run: RunFolder, done: int) -> None:
    """Show progress until trainer and orchestrator have ended; raise `ProcessFailed` when a process dies."""
    from braidrl.report.progress import Progress

    with Progress(run, config.max_steps, after=done) as progress:
        while not supervisor.finished():
            supervisor.check()
            progress.update()
            time.sleep(POLL_SECONDS)
        progress.update()


def free_port(host: str) -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
