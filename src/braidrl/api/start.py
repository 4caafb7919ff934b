"""Before anything runs: the config checked as `braid rl` checks it, the run folder ready."""

import os
from pathlib import Path

from braidrl.api.config import LoadedConfig
from braidrl.configs.core.errors import ConfigError
from braidrl.configs.rl import RLConfig
from braidrl.launch.options import LaunchOptions
from braidrl.launch.plan import machines_of, plan
from braidrl.launch.resume import check_clean, open_run_folder
from braidrl.launch.run import resolve
from braidrl.utils.run_folder import RunFolder


def options_of(
    resume: bool | str | os.PathLike[str], clean: bool, quiet: bool, verbose: bool
) -> LaunchOptions:
    """The flags of `braid rl`. Raises `ConfigError` for those that exclude each other."""
    if resume and clean:
        raise ConfigError("resume", "resume continues the run that clean would remove; give one of them")
    if quiet and verbose:
        raise ConfigError("quiet", "quiet shows less and verbose more; give one of them")
    path = None if isinstance(resume, bool) else Path(resume)
    return LaunchOptions(resume=bool(resume), resume_from=path, clean=clean, quiet=quiet, verbose=verbose)


def open_folder(given: LoadedConfig, options: LaunchOptions) -> tuple[RLConfig, RunFolder, int]:
    """The resolved config, its run folder with the environments in it, and the step to go on after.

    Raises `ConfigError`, and then nothing was touched.
    """
    if given.config.launcher == "slurm":
        raise ConfigError(
            "launcher", "a SLURM job is submitted by `braid rl`; from Python use 'local' or 'ray'"
        )
    config = resolve(given.config)
    check_clean(config, config.output_dir, options)
    plan(config, machines_of(config))  # whether there are enough GPUs
    run = RunFolder(config.output_dir)
    done = open_run_folder(run, options)
    given.write(run)
    return config, run, done


def by_hand(config: RLConfig) -> RLConfig:
    """The same, for a loop that one process runs. Raises `ConfigError` for what it cannot do."""
    for path, value, allowed in (
        ("launcher", config.launcher, "local"),
        ("trainer.parallel.processes", config.trainer.parallel.processes, 1),
        ("trainer.weights.transfer", config.trainer.weights.transfer, "filesystem"),
        ("share_device", config.share_device, False),
    ):
        if value != allowed:
            remedy = f"set it to {allowed!r}, or use run"
            raise ConfigError(path, f"is {value!r}; a Loop trains in this process alone: {remedy}")
    config = config.model_copy(deep=True)
    config.orchestrator.max_off_policy_steps = 0
    config.orchestrator.oversampling_factor = 1.0
    return config
