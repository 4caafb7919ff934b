"""One run of `braid rl`: resolve its config, place and start its processes, show progress, stop them together."""

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
    """Check environment blocks against verifiers, the renderer against its family, and that the user's functions are
    there; let servers be reached, with a key, where other machines have to."""
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
    """The resolved config, without what is chosen anew at each start, the addresses of the servers, and without the
    processes' copies of shared keys, so that a flag may change such a key at the root."""
    chosen = {
        f"{path}.{key}"
        for path, block, key in (
            ("inference", config.inference, "port"),
            ("orchestrator.client", config.orchestrator.client, "base_url"),
        )
        if key not in block.model_fields_set
    }
    return to_toml(config, without=chosen | SHARED_COPIES)


def carry_out(config: RLConfig, run: RunFolder, done: int, options: LaunchOptions) -> None:
    """Run all processes to their end, in a folder that was made ready to go on after step `done`.

    Raises `PlacementError` where there is no room, and `ProcessFailed` when a process dies.
    """
    run.configs.mkdir(parents=True, exist_ok=True)
    (run.configs / "rl.toml").write_text(resolved_toml(config))
    print(f"run folder {run.root}" + (f", continuing after step {done}" if done else ""), flush=True)
    resumes = config.ray.max_resumes if config.launcher == "ray" else 0
    while True:
        try:
            with recorded(run, done), tracking(config.tracker, run):
                play(config, run, done, options)
            break
        except ProcessFailed as failure:
            if not resumes:
                raise
            print(f"braid rl: error: {failure}\nthe other processes were stopped", file=sys.stderr, end="")
        resumes -= 1
        done = open_run_folder(run, LaunchOptions(resume=True))
        print(f"; the run goes on after step {done}", file=sys.stderr, flush=True)
    prune_checkpoints(run, config.checkpoint)
    forget_weights_before(run, config.max_steps, keep=run.published("checkpoints"))
    print(f"done: {config.max_steps} steps; the trained model lies in {run.weights(config.max_steps)}")


def open_launcher(config: RLConfig, slots: list[Slot]) -> Launcher:
    """The launcher of the config, with room for `slots` asked for."""
    if config.launcher == "ray":
        from braidrl.launch.ray import RayLauncher

        return RayLauncher(config, slots)
    if config.launcher == "slurm":
        from braidrl.launch.slurm import SlurmLauncher

        return SlurmLauncher(config)
    return LocalLauncher(config.stop_timeout, visible_devices())


def play(config: RLConfig, run: RunFolder, done: int, options: LaunchOptions) -> None:
    """Place and start all processes, and watch them until trainer and orchestrator have ended.

    Raises `PlacementError` where there is no room, and `ProcessFailed` when a process dies.
    """
    slots = plan(config, machines_of(config))
    launcher = open_launcher(config, slots)
    try:
        wiring = Wiring(config, run, launcher, slots, done, options.verbose)
        with Supervisor(launcher, wiring.renew) as supervisor:
            for process in wiring.processes():
                supervisor.start(process)
            watch(supervisor, config, run, done, options)
            if supervisor.restarts:
                print(f"inference servers were started anew {supervisor.restarts} time(s)")
    finally:
        launcher.stop()


def watch(
    supervisor: Supervisor, config: RLConfig, run: RunFolder, done: int, options: LaunchOptions
) -> None:
    """Show progress until trainer and orchestrator have ended; raise `ProcessFailed` when a process dies."""
    from braidrl.report.console import open_view

    with open_view(run, config.max_steps, done, options.quiet, options.verbose) as view:
        while not supervisor.finished():
            supervisor.check()
            view.update()
            time.sleep(POLL_SECONDS)
        view.update()
