"""Entry point of `braid`. Imports only what the selected command needs, so that `--help` is fast."""

import sys

from braidrl import __version__
from braidrl.entrypoints.commands import COMMANDS, function_of

USAGE = """\
usage: braid COMMAND [@ FILE ...] [--dotted.key VALUE ...]

Post-train language models with reinforcement learning.

commands:
{commands}

`braid COMMAND --help` lists every key. Files are TOML or YAML. Later files override earlier ones, and flags override
files. `--dry-run` prints the resolved config and starts nothing."""


def usage() -> str:
    """Return the text of `braid --help`."""
    width = max(map(len, COMMANDS)) + 2
    return USAGE.format(commands="\n".join(f"  {name:<{width}}{text}" for name, text in COMMANDS.items()))


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    The exit code is 0 on success, 1 on failure, 2 for an invalid configuration, 130 if interrupted, 143 if terminated.
    """
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in ("-h", "--help"):
        print(usage())
        return 0
    if args[0] == "--version":
        print(f"braid {__version__}")
        return 0
    if args[0] not in COMMANDS:
        return unknown_command(args[0])
    from braidrl.configs.core.errors import ConfigError, ConfigErrors
    from braidrl.utils.process import EXIT_CODE, Terminated

    try:
        return function_of(args[0])(args[1:])
    except (ConfigError, ConfigErrors) as error:
        for line in str(error).splitlines():
            print(f"braid {args[0]}: error: {line}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        sys.stdout = None  # otherwise flushing it at exit would fail again
        return 1
    except Terminated:
        print("terminated", file=sys.stderr)
        return EXIT_CODE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def unknown_command(name: str) -> int:
    """Print an error with the closest command and return exit code 2."""
    from difflib import get_close_matches

    nearest = get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean `braid {nearest[0]}`?" if nearest else f"commands: {', '.join(COMMANDS)}"
    print(f"braid: error: unknown command {name!r}; {hint}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
