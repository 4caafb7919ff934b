"""`braid`: the commands. Nothing heavy is imported before a command is known."""

import sys

from braidrl import __version__
from braidrl.entrypoints.commands import COMMANDS, function_of

USAGE = """\
usage: braid COMMAND [@ FILE ...] [--dotted.key VALUE ...]

Post-train language models with reinforcement learning.

commands:
{commands}

`braid COMMAND --help` lists every key. Files are TOML or YAML; later files win, then flags.
`--dry-run` prints the resolved config and starts nothing."""


def usage() -> str:
    """The text of `braid --help`."""
    width = max(map(len, COMMANDS)) + 2
    return USAGE.format(commands="\n".join(f"  {name:<{width}}{text}" for name, text in COMMANDS.items()))


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns its exit code: 0 done, 1 failed, 2 bad configuration, 130 interrupted, 143 terminated."""
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
    except BrokenPipeError:  # somebody looked at the first lines only, with `head` say
        sys.stdout = None  # or closing it at exit would fail again
        return 1
    except Terminated:
        print("terminated", file=sys.stderr)
        return EXIT_CODE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def unknown_command(name: str) -> int:
    """Say which command was meant; exit code 2."""
    from difflib import get_close_matches

    nearest = get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean `braid {nearest[0]}`?" if nearest else f"commands: {', '.join(COMMANDS)}"
    print(f"braid: error: unknown command {name!r}; {hint}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
