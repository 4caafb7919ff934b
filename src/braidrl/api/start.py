"""Checks of the config and preparation of the run folder, as in `braid rl`."""

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
    """Return the launch options. Raises `ConfigError` for mutually exclusive arguments."""
    if resume and clean:
        raise ConfigError(
            "resume", "cannot be combined with clean, which removes the run to continue; give one of them"
        )
    if quiet and verbose:
        raise ConfigError("quiet", "cannot be combined with verbose; give one of them")
    path = None if isinstance(resume, bool) else Path(resume)
    return LaunchOptions(resume=bool(resume), resume_from=path, clean=clean, quiet=quiet, verbose=verbose)


def open_folder(given: LoadedConfig, options: LaunchOptions) -> tuple[RLConfig, RunFolder, int]:
    """Check the config and prepare its run folder. Return the resolved config, the folder and the step to continue
    after (0 for a new run).

    Raises `ConfigError` before anything is written.
    """
    if given.config.launcher == "slurm":
        raise ConfigError(
            "launcher",
            "is 'slurm', which the Python API does not support; set 'local' or 'ray', or submit with `braid rl`",
        )
    config = resolve(given.config)
    check_clean(config, config.output_dir, options)
    plan(config, machines_of(config))  # raises if there are not enough GPUs
    run = RunFolder(config.output_dir)
    after = open_run_folder(run, options)
    given.write(run)
    return config, run, after


def single_process(config: RLConfig) -> RLConfig:
    """Return the config for a `Loop`: strictly on-policy, no oversampling.

    Raises `ConfigError` for settings that require several processes.
    """
    for path, value, allowed in (
        ("launcher", config.launcher, "local"),
        ("trainer.parallel.processes", config.trainer.parallel.processes, 1),
        ("trainer.weights.transfer", config.trainer.weights.transfer, "filesystem"),
        ("share_device", config.share_device, False),
    ):
        if value != allowed:
            remedy = f"set it to {allowed!r}, or use braidrl.run"
            raise ConfigError(path, f"is {value!r}, but a Loop trains in a single process; {remedy}")
    config = config.model_copy(deep=True)
    config.orchestrator.max_off_policy_steps = 0
    config.orchestrator.oversampling_factor = 1.0
    return config
