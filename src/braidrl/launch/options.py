"""Command-line flags that are not configuration keys."""

from dataclasses import dataclass, field
from pathlib import Path

from braidrl.configs.core.errors import ConfigError

RUN_FLAGS = """\
  --dry-run   print the resolved config and start nothing
  --resume    continue the run in output_dir from its newest complete checkpoint; `--resume PATH` continues from the
              checkpoint at PATH (checkpoints/step_N), or from the newest one of the run at PATH, in a new output_dir
  --clean     remove the contents of output_dir first
  --quiet     print only the run folder and the outcome, no progress
  --verbose   write debug messages to the logs, and print two lines per step if the output is not a terminal"""

LATEST = "latest"
"""Value of `--resume` for the newest checkpoint in `output_dir`. Equivalent to `--resume` without a value."""


@dataclass
class LaunchOptions:
    """Parsed command line of `braid rl`, `eval` and the single processes."""

    config_args: list[str] = field(default_factory=list)
    """Configuration arguments (`@ FILE` and dotted flags), for `load_config`."""
    dry_run: bool = False
    resume: bool = False
    resume_from: Path | None = None
    """Checkpoint or run folder to continue from; None: the newest checkpoint in `output_dir`."""
    clean: bool = False
    verbose: bool = False
    quiet: bool = False
    resume_step: int | None = None
    """Step of the checkpoint that a single process continues from. Set by the launcher."""
    in_job: bool = False
    """True inside a SLURM job, False in the command that submits one. Set by the job script."""


def parse_options(args: list[str]) -> LaunchOptions:
    """Separate flags from configuration arguments. Raises `ConfigError` for mutually exclusive flags."""
    options, rest = LaunchOptions(), list(args)
    while rest:
        arg = rest.pop(0)
        if arg in ("--dry-run", "--resume", "--clean", "--verbose", "--quiet", "--in-job"):
            setattr(options, arg[2:].replace("-", "_"), True)
            if arg == "--resume" and rest and not rest[0].startswith(("-", "@")):
                options.resume_from = None if rest[0] == LATEST else Path(rest[0])
                rest.pop(0)
        elif arg == "--resume-step":
            options.resume_step = _step(rest.pop(0) if rest else "")
        else:
            options.config_args.append(arg)
    if options.resume and options.clean:
        raise ConfigError(
            "--resume", "cannot be combined with --clean, which removes the run to continue; give one of them"
        )
    if options.quiet and options.verbose:
        raise ConfigError("--quiet", "cannot be combined with --verbose; give one of them")
    return options


def _step(text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(
            "--resume-step", f"got {text!r}; give the step of a checkpoint, a non-negative integer"
        )
    return int(text)
