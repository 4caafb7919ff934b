"""What the three process commands share: load the config, maybe only show it, run."""

import importlib
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from braidrl.configs.core.load import load_config, to_toml
from braidrl.entrypoints.options import Options, parse_options
from braidrl.utils.functions import check_functions


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


def prepare(target: str, options: Options) -> Callable[..., Any]:
    """Set up logging and import `module:function`."""
    from braidrl.utils.log import configure_logging

    configure_logging(options.verbose)
    module, name = target.split(":")
    return getattr(importlib.import_module(module), name)
