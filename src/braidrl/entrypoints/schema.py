"""`braid schema [COMMAND]`: print the JSON schema of a command's config files, for editors (docs/editor.md)."""

import argparse
import importlib
import json

from pydantic import BaseModel

CONFIGS = {
    "rl": "braidrl.configs.rl:RLConfig",
    "sft": "braidrl.configs.sft:SFTConfig",
    "eval": "braidrl.configs.eval_command:EvalCommandConfig",
    "trainer": "braidrl.configs.trainer.config:TrainerConfig",
    "orchestrator": "braidrl.configs.orchestrator:OrchestratorConfig",
    "inference": "braidrl.configs.inference:InferenceConfig",
    "score": "braidrl.configs.score:ScoreConfig",
    "track": "braidrl.configs.trackers:TrackConfig",
}
"""Config class of each command that reads config files."""


def main(args: list[str]) -> int:
    from braidrl.configs.core.schema import file_schema

    parser = argparse.ArgumentParser(prog="braid schema", description=__doc__)
    parser.add_argument(
        "command",
        nargs="?",
        default="rl",
        choices=list(CONFIGS),
        help="command whose files to describe (default: rl)",
    )
    command = parser.parse_args(args).command
    print(json.dumps(file_schema(config_class(command)), indent=2))
    return 0


def config_class(command: str) -> type[BaseModel]:
    """Import and return the config class of a command."""
    module, name = CONFIGS[command].split(":")
    return getattr(importlib.import_module(module), name)
