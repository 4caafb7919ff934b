"""Commands that run a single process: `braid inference`, `orchestrator`, `trainer` and `sft`."""

import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from braidrl.configs.core.load import load_config, to_toml
from braidrl.launch.options import LaunchOptions, parse_options
from braidrl.utils.functions import check_functions

if TYPE_CHECKING:
    from braidrl.configs.sft import SFTConfig


def run_process(
    cls: type[BaseModel], args: list[str], command: str, target: str, pass_resume: bool = True
) -> int:
    """Load the config and run `target` (`module:function`) with it, or print the config with `--dry-run`.

    `target` is imported only to run it.
    """
    options = parse_options(args)
    config = load_config(cls, options.config_args, f"braid {command}")
    check_functions(config)
    if options.dry_run:
        print(to_toml(config), end="")
        return 0
    run = prepare(target, options)
    run(config, options.resume_step) if pass_resume else run(config)
    return 0


def prepare(target: str, options: LaunchOptions) -> Callable[..., Any]:
    """Configure logging, then import and return `target` (`module:function`)."""
    from braidrl.utils.log import configure_logging

    configure_logging(options.verbose)
    module, name = target.split(":")
    return getattr(importlib.import_module(module), name)


def inference(args: list[str]) -> int:
    """`braid inference`: one of the three processes of a run, or a standalone server."""
    from braidrl.configs.inference import InferenceConfig

    return run_process(InferenceConfig, args, "inference", "braidrl.inference.server:run", pass_resume=False)


def orchestrator(args: list[str]) -> int:
    """`braid orchestrator`: one of the three processes of a run."""
    from braidrl.configs.orchestrator import OrchestratorConfig

    return run_process(OrchestratorConfig, args, "orchestrator", "braidrl.orchestrator.orchestrator:run")


def trainer(args: list[str]) -> int:
    """`braid trainer`: one of the three processes of a run."""
    from braidrl.configs.trainer.config import TrainerConfig

    return run_process(TrainerConfig, args, "trainer", "braidrl.trainer.rl.train:train")


def sft(args: list[str]) -> int:
    """`braid sft @ FILE`: supervised fine-tuning on demonstrations, in this process."""
    from braidrl.configs.sft import SFTConfig

    return run_process(SFTConfig, args, "sft", "braidrl.entrypoints.process:train_sft", pass_resume=False)


def train_sft(config: "SFTConfig") -> None:
    """Train, and write the resolved config and the record of the run to the run folder."""
    from braidrl.monitors.record import recorded
    from braidrl.trainer.sft.train import train_sft as run_sft
    from braidrl.utils.run_folder import RunFolder

    run = RunFolder(config.output_dir)
    leads = os.environ.get("RANK", "0") == "0"
    # Only the first rank records. A finished run raises, which must not overwrite its recorded outcome.
    if not leads or run.weights(config.max_steps).exists():
        run_sft(config)
        return
    run.configs.mkdir(parents=True, exist_ok=True)
    (run.configs / "sft.toml").write_text(to_toml(config))
    with recorded(run):
        run_sft(config)
