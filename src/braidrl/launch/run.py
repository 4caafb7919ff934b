"""Run of `braid rl`: resolution of the config, start of the processes, progress, and the end of the run."""

import sys
import time

from braidrl.configs.core.load import to_toml
from braidrl.configs.rl import SHARED_COPIES, RLConfig
from braidrl.launch.contract import Launcher, Slot
from braidrl.launch.local import LocalLauncher
from braidrl.launch.options import LaunchOptions
from braidrl.launch.plan import machines_of, plan, visible_devices
from braidrl.launch.resume import open_run_folder
from braidrl.launch.supervisor import ProcessFailed, Supervisor
from braidrl.launch.tracker_processes import check_trackers, tracking
from braidrl.launch.wiring import API_KEY, POLL_SECONDS, Wiring
from braidrl.monitors.record import recorded
from braidrl.transport.weights import forget_weights_before
from braidrl.utils.functions import check_functions
from braidrl.utils.renderer import renderer_options
from braidrl.utils.retention import prune_checkpoints
from braidrl.utils.run_folder import RunFolder


def resolve(config: RLConfig) -> RLConfig:
    """Return the config with resolved environment blocks, after checking environments, renderer, trackers and user
    functions.

    If processes run on several machines, servers listen on all interfaces and require an API key.
    """
    from braidrl.configs.resolve import resolve_environments

    config = config.model_copy(deep=True)
    check_functions(config)
    check_trackers(config.tracker)
    resolve_environments(config.orchestrator, "orchestrator.")
    renderer_options(config.orchestrator.renderer, "orchestrator.renderer")
    inference, client = config.inference, config.orchestrator.client
    if config.launcher != "local":
        inference.host = inference.host if "host" in inference.model_fields_set else "0.0.0.0"
        inference.api_key_var = inference.api_key_var or API_KEY
    if "base_url" not in client.model_fields_set:
        client.api_key_var = inference.api_key_var
    return config


def resolved_toml(config: RLConfig) -> str:
    """Return the resolved config as TOML, in a form that can be loaded again for another start.

    It omits server addresses, which are chosen at each start, and the per-process copies of shared keys, so that a flag
    can override a shared key at the root.
    """
    chosen = {
        f"{path}.{key}"
        for path, block, key in (
            ("inference", config.inference, "port"),
            ("orchestrator.client", config.orchestrator.client, "base_url"),
        )
        if key not in block.model_fields_set
    }
    return to_toml(config, without=chosen | SHARED_COPIES)


def launch_run(config: RLConfig, run: RunFolder, after: int, options: LaunchOptions) -> None:
    """Run all processes until they end. The folder must be prepared to continue after step `after`.

    With Ray, a run whose processes fail is resumed up to `ray.max_resumes` times.

    Raises:
        PlacementError: the launcher has no resources for a process.
        ProcessFailed: a process failed.
    """
    run.configs.mkdir(parents=True, exist_ok=True)
    (run.configs / "rl.toml").write_text(resolved_toml(config))
    print(f"run folder {run.root}" + (f", continuing after step {after}" if after else ""), flush=True)
    resumes = config.ray.max_resumes if config.launcher == "ray" else 0
    while True:
        try:
            with recorded(run, after), tracking(config.tracker, run):
                run_processes(config, run, after, options)
            break
        except ProcessFailed as failure:
            if not resumes:
                raise
            print(f"braid rl: error: {failure}\nstopped the other processes", file=sys.stderr, end="")
        resumes -= 1
        after = open_run_folder(run, LaunchOptions(resume=True))
        print(f"; resuming after step {after}", file=sys.stderr, flush=True)
    prune_checkpoints(run, config.checkpoint)
    forget_weights_before(run, config.max_steps, keep=run.published("checkpoints"))
    print(f"Finished {config.max_steps} steps. Model saved to {run.weights(config.max_steps)}")


def open_launcher(config: RLConfig, slots: list[Slot]) -> Launcher:
    """Return the configured launcher. With Ray, this requests the resources of `slots`."""
    if config.launcher == "ray":
        from braidrl.launch.ray import RayLauncher

        return RayLauncher(config, slots)
    if config.launcher == "slurm":
        from braidrl.launch.slurm import SlurmLauncher

        return SlurmLauncher(config)
    return LocalLauncher(config.stop_timeout, visible_devices())


def run_processes(config: RLConfig, run: RunFolder, after: int, options: LaunchOptions) -> None:
    """Place and start all processes, and supervise them until trainer and orchestrator have ended.

    Raises:
        PlacementError: the launcher has no resources for a process.
        ProcessFailed: a process failed.
    """
    slots = plan(config, machines_of(config))
    launcher = open_launcher(config, slots)
    try:
        wiring = Wiring(config, run, launcher, slots, after, options.verbose)
        with Supervisor(launcher, wiring.renew) as supervisor:
            for process in wiring.processes():
                supervisor.start(process)
            show_progress(supervisor, config, run, after, options)
            if supervisor.restarts:
                print(f"inference servers were restarted {supervisor.restarts} time(s)")
    finally:
        launcher.stop()


def show_progress(
    supervisor: Supervisor, config: RLConfig, run: RunFolder, after: int, options: LaunchOptions
) -> None:
    """Show progress until trainer and orchestrator have ended. Raises `ProcessFailed` if a process fails."""
    from braidrl.report.console import open_view

    with open_view(run, config.max_steps, after, options.quiet, options.verbose) as view:
        while not supervisor.finished():
            supervisor.check()
            view.update()
            time.sleep(POLL_SECONDS)
        view.update()
