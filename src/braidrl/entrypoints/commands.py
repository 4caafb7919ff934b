"""The commands of `braid`, in the order of `braid --help`. Nothing heavy is imported here."""

import importlib
from collections.abc import Callable

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
"""What each command does, by name."""

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
"""`module:function` in this package. Every other command is `main` of the module of its name, with `_` for `-`."""


def function_of(command: str) -> Callable[[list[str]], int]:
    """Import the function of a command. It takes the arguments and returns an exit code."""
    module, name = FUNCTIONS.get(command, f"{command.replace('-', '_')}:main").split(":")
    return getattr(importlib.import_module(f"braidrl.entrypoints.{module}"), name)
