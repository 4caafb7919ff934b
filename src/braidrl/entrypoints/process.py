"""Commands that are one process: `braid inference`, `orchestrator`, `trainer` and `sft`.

Each loads its config, then prints it or runs. Its config class and its function are imported when they are needed.
"""

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
    """Run `target` (`module:function`) with the loaded config; `target` is imported only to be run."""
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
    """Set up logging and import `module:function`."""
    from braidrl.utils.log import configure_logging

    configure_logging(options.verbose)
    module, name = target.split(":")
    return getattr(importlib.import_module(module), name)


def inference(args: list[str]) -> int:
    """`braid inference`: one of the three processes of a run, or a server of its own."""
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
    """Train, and let the run folder tell of it: the resolved config, how it was started and how it ended."""
    from braidrl.monitors.record import recorded
    from braidrl.trainer.sft.train import train_sft as run_sft
    from braidrl.utils.run_folder import RunFolder

    run = RunFolder(config.output_dir)
    leads = os.environ.get("RANK", "0") == "0"
    if (
        not leads or run.weights(config.max_steps).exists()
    ):  # trained already: an error, and not this run's end
        run_sft(config)
        return
    run.configs.mkdir(parents=True, exist_ok=True)
    (run.configs / "sft.toml").write_text(to_toml(config))
    with recorded(run):
        run_sft(config)
