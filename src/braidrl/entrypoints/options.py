"""Flags of a command that are not configuration."""

from dataclasses import dataclass, field

from braidrl.configs.errors import ConfigError

RUN_FLAGS = """\
  --dry-run   print the resolved config and start nothing
  --resume    continue the run in output_dir from its newest complete checkpoint
  --clean     remove what lies in output_dir first
  --verbose   show debug messages in the logs"""


@dataclass
class Options:
    """What stood on the command line beside the configuration."""

    config_args: list[str] = field(default_factory=list)
    """`@ FILE` and dotted flags, for `load_config`."""
    dry_run: bool = False
    resume: bool = False
    clean: bool = False
    verbose: bool = False
    resume_step: int | None = None
    """Step whose checkpoint a single process continues from (the launcher passes it on)."""


def parse_options(args: list[str]) -> Options:
    """Split a command line. Raises `ConfigError` for flags that exclude each other."""
    options = Options()
    rest = iter(args)
    for arg in rest:
        if arg in ("--dry-run", "--resume", "--clean", "--verbose"):
            setattr(options, arg[2:].replace("-", "_"), True)
        elif arg == "--resume-step":
            options.resume_step = _step(next(rest, ""))
        else:
            options.config_args.append(arg)
    if options.resume and options.clean:
        raise ConfigError(
            "--resume", "--resume continues the run that --clean would remove; give one of them"
        )
    return options


def _step(text: str) -> int:
    if not text.isdecimal():
        raise ConfigError("--resume-step", f"expected the step of a checkpoint, got {text!r}")
    return int(text)
