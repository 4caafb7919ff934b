"""Flags of a command that are not configuration."""

from dataclasses import dataclass, field
from pathlib import Path

from braidrl.configs.core.errors import ConfigError

RUN_FLAGS = """\
  --dry-run   print the resolved config and start nothing
  --resume    continue the run in output_dir from its newest complete checkpoint; `--resume PATH` from the
              checkpoint at PATH (checkpoints/step_N), or from the newest of another run, in an output_dir of its own
  --clean     remove what lies in output_dir first
  --quiet     show no progress, only where the run lies and how it ended
  --verbose   show debug messages in the logs, and two lines a step where there is no terminal"""

LATEST = "latest"
"""What `--resume` says for the newest checkpoint of the run itself, which is also what it means alone."""


@dataclass
class LaunchOptions:
    """What stood on the command line beside the configuration."""

    config_args: list[str] = field(default_factory=list)
    """`@ FILE` and dotted flags, for `load_config`."""
    dry_run: bool = False
    resume: bool = False
    resume_from: Path | None = None
    """Checkpoint or run folder to continue from; None: the run's own newest checkpoint."""
    clean: bool = False
    verbose: bool = False
    quiet: bool = False
    resume_step: int | None = None
    """Step whose checkpoint a single process continues from (the launcher passes it on)."""
    in_job: bool = False
    """Whether this is the run of a SLURM job, rather than the command that submits one (the job passes it on)."""


def parse_options(args: list[str]) -> LaunchOptions:
    """Split a command line. Raises `ConfigError` for flags that exclude each other."""
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
            "--resume", "--resume continues the run that --clean would remove; give one of them"
        )
    if options.quiet and options.verbose:
        raise ConfigError("--quiet", "--quiet shows less and --verbose more; give one of them")
    return options


def _step(text: str) -> int:
    if not text.isdecimal():
        raise ConfigError("--resume-step", f"expected the step of a checkpoint, got {text!r}")
    return int(text)
