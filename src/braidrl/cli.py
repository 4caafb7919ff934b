"""`braid`: the commands. Nothing heavy is imported before a command is known."""

import importlib
import sys

from braidrl import __version__

COMMANDS = {
    "quickstart": "Make a tiny model and watch it learn: warm-up, reinforcement learning, before and after",
    "rl": "Reinforcement learning: inference, orchestrator and trainer, launched and supervised",
    "sft": "Supervised fine-tuning on demonstrations",
    "eval": "Evaluate a model, a checkpoint or an endpoint: reward, pass@k",
    "report": "Write one HTML page of a run: curves, rollouts, every token with its numbers",
    "watch": "Serve the same page of a run that goes on, on this machine",
    "export": "Write any policy of a run as an ordinary Hugging Face folder",
    "runs": "List runs: how they ended or how far they are, and their last metrics",
    "compare": "Runs side by side: what their configs differ in, and their metrics",
    "track": "Send the metrics of a run to Weights & Biases, TensorBoard or MLflow",
    "inference": "Serve a model (one of the three processes of `braid rl`)",
    "orchestrator": "Run environments and ship batches (one of the three processes)",
    "trainer": "Take optimizer steps (one of the three processes)",
    "algorithms": "List every algorithm: what it is, its parameters, where it comes from",
    "losses": "List every rl loss: what it is, its parameters, where it comes from",
    "samplers": "List every task sampler of curricula: what it is, its parameters, where it comes from",
    "gates": "List every admission gate of curricula: what it is, its parameters, where it comes from",
    "verify": "Before a long run: gradients do not depend on cuts, sampler and trainer agree",
    "score": "Run an algorithm over recorded episodes, without models; compare two",
    "new-algorithm": "Write a package with an algorithm of your own, to start from",
    "schema": "Print the JSON schema of a config, for editors",
    "completion": "Print the completion script of a shell: bash, zsh or fish",
    "tiny-model": "Write a tiny, randomly initialised model folder",
}

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
    """Run a command; returns its exit code: 0 done, 1 failed, 2 bad configuration, 130 interrupted."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in ("-h", "--help"):
        print(usage())
        return 0
    if args[0] == "--version":
        print(f"braid {__version__}")
        return 0
    if args[0] not in COMMANDS:
        return unknown_command(args[0])
    from braidrl.configs.errors import ConfigError, ConfigErrors

    try:
        module = importlib.import_module(f"braidrl.entrypoints.{args[0].replace('-', '_')}")
        return module.main(args[1:])
    except (ConfigError, ConfigErrors) as error:
        for line in str(error).splitlines():
            print(f"braid {args[0]}: error: {line}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # somebody looked at the first lines only, with `head` say
        sys.stdout = None  # or closing it at exit would fail again
        return 1
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
