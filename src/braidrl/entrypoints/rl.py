"""`braid rl @ FILE`: start inference, orchestrator and trainer, show progress, and stop them together."""

import sys

from braidrl.configs.core.load import load_config
from braidrl.configs.rl import SHARED_COPIES, RLConfig
from braidrl.launch.options import RUN_FLAGS, parse_options
from braidrl.launch.plan import machines_of, plan
from braidrl.launch.resume import check_clean, open_run_folder
from braidrl.launch.run import launch_run, resolve, resolved_toml
from braidrl.launch.supervisor import ProcessFailed
from braidrl.launch.wiring import PlacementError
from braidrl.utils.run_folder import RunFolder


def main(args: list[str]) -> int:
    """Run or submit a run. Exit codes: 0 finished (with SLURM: submitted), 1 a process failed, 2 invalid configuration,
    130 interrupted.
    """
    if "--help" in args or "-h" in args:
        print(f"flags of this command:\n{RUN_FLAGS}\n")
    options = parse_options(args)
    config = resolve(load_config(RLConfig, options.config_args, "braid rl", SHARED_COPIES))
    check_clean(config, config.output_dir, options)
    if config.launcher == "slurm" and not options.in_job:
        from braidrl.launch import slurm

        return slurm.show(config) if options.dry_run else slurm.submit(config, resolved_toml(config), options)
    plan(config, machines_of(config))  # raises if there are not enough GPUs
    if options.dry_run:
        print(resolved_toml(config), end="")
        return 0
    run = RunFolder(config.output_dir)
    try:
        launch_run(config, run, open_run_folder(run, options), options)
    except PlacementError as error:
        print(f"braid rl: error: {error}", file=sys.stderr)
        return 1
    except ProcessFailed as failure:
        print(
            f"braid rl: error: {failure}\nstopped the other processes; continue with --resume",
            file=sys.stderr,
        )
        return 1
    return 0
