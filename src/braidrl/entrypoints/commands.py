"""Commands of `braid`, in the order of `braid --help`. Every command imports this module, so its imports stay light."""

import importlib
from collections.abc import Callable

COMMANDS = {
    "quickstart": "Create a tiny model and train it with RL on this machine, in minutes",
    "rl": "Train with RL: launch and supervise inference, orchestrator and trainer",
    "sft": "Fine-tune on demonstrations",
    "eval": "Evaluate a model, a checkpoint or an endpoint: reward, pass@k",
    "report": "Write an HTML report of a run: curves, rollouts, per-token values",
    "watch": "Serve a live report of a running job on this machine",
    "export": "Export a policy of a run as a Hugging Face model folder",
    "runs": "List runs with their status, progress and last metrics",
    "compare": "Compare runs: differences of their configs, and metrics side by side",
    "track": "Send the metrics of a run to Weights & Biases, TensorBoard or MLflow",
    "inference": "Serve a model (one of the three processes of `braid rl`)",
    "orchestrator": "Run environments and assemble batches (one of the three processes)",
    "trainer": "Train on batches (one of the three processes)",
    "algorithms": "List installed algorithms with their parameters and sources",
    "losses": "List installed rl losses with their parameters and sources",
    "samplers": "List installed task samplers of curricula with their parameters and sources",
    "gates": "List installed admission gates of curricula with their parameters and sources",
    "verify": "Check a model and config before a long run: gradients, and sampler against trainer",
    "score": "Run one or two algorithms on recorded episodes, without models",
    "new-algorithm": "Create a package with a new algorithm, its config and its tests",
    "schema": "Print the JSON schema of a config, for editors",
    "completion": "Print the completion script for bash, zsh or fish",
    "tiny-model": "Create a tiny, randomly initialised model folder",
}
"""Descriptions of the commands, by name."""

FUNCTIONS = {
    "eval": "eval.command:main",
    "watch": "report:watch",
    "inference": "process:inference",
    "orchestrator": "process:orchestrator",
    "trainer": "process:trainer",
    "sft": "process:sft",
    "algorithms": "catalogue:algorithms",
    "losses": "catalogue:losses",
    "samplers": "catalogue:samplers",
    "gates": "catalogue:gates",
    "verify": "verify.command:main",
}
"""`module:function` of commands in this package. The others are `main` of the module with their name, with `_` for
`-`."""


def function_of(command: str) -> Callable[[list[str]], int]:
    """Import and return the function of a command, which takes the arguments and returns an exit code."""
    module, name = FUNCTIONS.get(command, f"{command.replace('-', '_')}:main").split(":")
    return getattr(importlib.import_module(f"braidrl.entrypoints.{module}"), name)
