"""`braid completion SHELL`: print the script that completes commands, keys and values in bash, zsh or fish.

Add one of these lines to the start-up file of the shell:

  bash                  source <(braid completion bash)
  zsh, after compinit   source <(braid completion zsh)
  fish                  braid completion fish | source

The script includes the algorithms, losses, samplers and gates of all installed packages.
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from braidrl.configs.core.reference import Key, keys_of
from braidrl.entrypoints.commands import COMMANDS

VALUES = re.compile(r"\{([\w,.+-]+)\}")
"""Choices in the type column of `--help`, such as `{bash,zsh}`."""
PROCESS_FLAGS = {"--help": "list every key", "--dry-run": "print the resolved config and start nothing"}
CLEAN = {"--clean": "remove the contents of output_dir first"}
VERBOSE = {"--verbose": "show debug messages"}
JSON = {"--json": "print JSON"}
FLAGS = {
    "rl": {"--resume": "continue the run in output_dir", "--quiet": "show no progress"} | CLEAN | VERBOSE,
    "eval": CLEAN | VERBOSE,
    "verify": {"--batch": "a recorded batch or a run folder"} | JSON,
    "runs": JSON,
    "compare": {"--metrics": "metrics to show"} | JSON,
}
"""Flags of commands that are not configuration keys, with their descriptions."""


@dataclass
class CommandWords:
    """Completions of the arguments of a command."""

    flags: dict[str, str] = field(default_factory=lambda: {"--help": "show the help of this command"})
    """Flags and their descriptions."""
    values: dict[str, list[str]] = field(default_factory=dict)
    """Possible values of flags with a fixed set of values."""
    first: list[str] = field(default_factory=list)
    """Possible values of the first argument. Empty if it is a file."""


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="braid completion", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shell", choices=list(SHELLS))
    shell = parser.parse_args(args).shell
    print("\n".join(SHELLS[shell](words_of_all())))
    return 0


def words_of_all() -> dict[str, CommandWords]:
    """Return the completions of each command."""
    from braidrl.configs.plugins import ALGORITHMS, GATES, LOSSES, SAMPLERS
    from braidrl.configs.rl import SHARED_COPIES
    from braidrl.entrypoints.schema import CONFIGS, config_class

    found = {command: CommandWords() for command in COMMANDS}
    for command in (*CONFIGS, "verify"):
        cls = config_class("rl" if command == "verify" else command)
        for key in keys_of(cls, hidden=SHARED_COPIES if command in ("rl", "verify") else frozenset()):
            _add_key(found[command], key)
        found[command].flags |= PROCESS_FLAGS
    catalogues = {"algorithms": ALGORITHMS, "losses": LOSSES, "samplers": SAMPLERS, "gates": GATES}
    for command, types in catalogues.items():
        found[command].first = list(types)
    found["schema"].first, found["completion"].first = list(CONFIGS), list(SHELLS)
    for command, flags in FLAGS.items():
        found[command].flags |= flags
    return found


def _add_key(words: CommandWords, key: Key) -> None:
    if "[]" in key.path:  # list elements have no flag
        return
    words.flags[f"--{key.path}"] = key.description
    values = [value for group in VALUES.findall(key.type) for value in group.split(",")]
    if key.type == "bool":
        values = ["true", "false"]
    if values:
        words.values[f"--{key.path}"] = values


def bash(words: dict[str, CommandWords]) -> Iterator[str]:
    yield "# braid completion bash"
    yield "_braid() {"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}"'
    yield '    local previous="${COMP_WORDS[COMP_CWORD-1]}" words=""'
    yield "    COMPREPLY=()"
    yield f'    if ((COMP_CWORD == 1)); then words="{" ".join([*words, "--help", "--version"])}"'
    yield "    else"
    yield '        case "$command $previous" in'
    for command, known in words.items():
        for flag, values in known.values.items():
            yield f'            "{command} {flag}") words="{" ".join(values)}" ;;'
        if known.first:
            yield f'            "{command} {command}") words="{" ".join(known.first)}" ;;'
    yield "        esac"
    yield '        [[ -n "$words" || "$word" != -* ]] || case "$command" in'
    for command, known in words.items():
        yield f'            {command}) words="{" ".join(known.flags)}" ;;'
    yield "        esac"
    yield "    fi"
    yield '    [[ -z "$words" ]] || COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o bashdefault -o default -F _braid braid"


def zsh(words: dict[str, CommandWords]) -> Iterator[str]:
    yield "#compdef braid"
    yield "_braid() {"
    yield "    local -a found"
    yield "    if ((CURRENT == 2)); then"
    yield f"        found=({' '.join(_described(COMMANDS))})"
    yield "        _describe command found"
    yield "        return"
    yield "    fi"
    yield '    case "$words[2] $words[CURRENT-1]" in'
    for command, known in words.items():
        for flag, values in known.values.items():
            yield f'        "{command} {flag}") compadd -- {" ".join(values)}; return ;;'
        if known.first:
            yield f'        "{command} {command}") compadd -- {" ".join(known.first)}; return ;;'
    yield "    esac"
    yield '    [[ "$words[CURRENT]" == -* ]] && case "$words[2]" in'
    for command, known in words.items():
        yield f"        {command}) found=({' '.join(_described(known.flags))}) ;;"
    yield "    esac"
    yield "    if (($#found)); then _describe option found; else _files; fi"
    yield "}"
    yield "compdef _braid braid"


def fish(words: dict[str, CommandWords]) -> Iterator[str]:
    yield "# braid completion fish"
    yield "complete -c braid -e"
    for command, text in COMMANDS.items():
        yield f"complete -c braid -f -n __fish_use_subcommand -a {command} -d {_quoted(text)}"
    for command, known in words.items():
        seen = f"-n '__fish_seen_subcommand_from {command}'"
        for flag, text in known.flags.items():
            values = f" -x -a {_quoted(' '.join(known.values[flag]))}" if flag in known.values else ""
            yield f"complete -c braid {seen} -l {flag[2:]} -d {_quoted(_short(text))}{values}"
        if known.first:
            yield f"complete -c braid -f {seen} -a {_quoted(' '.join(known.first))}"


def _described(texts: dict[str, str]) -> Iterator[str]:
    """Yield `'word:description'` for each word, the format of `_describe` in zsh."""
    for word, text in texts.items():
        yield _quoted(f"{word}:{_short(text)}")


def _short(text: str) -> str:
    """Truncate a description to 60 characters."""
    return text if len(text) <= 60 else text[:57].rstrip() + "..."


def _quoted(text: str) -> str:
    """Quote for a shell. Quotes and backslashes are removed, because shells escape them differently."""
    return "'" + text.replace("'", "").replace("\\", "") + "'"


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}
