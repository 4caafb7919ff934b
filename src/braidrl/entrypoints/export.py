"""`braid export SOURCE TARGET`: export a policy of a run as a Hugging Face model folder.

An adapter is merged into its base model, or exported separately with `--adapter`.
"""

import argparse
from pathlib import Path

from braidrl.configs.core.errors import ConfigError
from braidrl.utils.model_source import ModelSource, find_model

DTYPES = ("float32", "bfloat16", "float16")


def main(args: list[str]) -> int:
    options = _parser().parse_args(args)
    try:
        source = find_model(options.source, options.step)
    except (OSError, ValueError) as error:
        raise ConfigError("source", str(error)) from None
    if options.target.exists():
        raise ConfigError("target", f"{options.target} already exists; choose a new folder")
    if options.adapter and options.dtype is not None:
        raise ConfigError(
            "--dtype",
            f"is {options.dtype!r}, but --adapter writes the adapter in float32, as it was trained; omit --dtype",
        )
    try:
        dtype = _export(source, options)
    except OSError as error:
        raise ConfigError("--base", str(error)) from None
    except ValueError as error:
        raise ConfigError("source", str(error)) from None
    print(f"{options.target}: {source.checkpoint or source.weights} in {dtype}")
    return 0


def _export(source: ModelSource, options: argparse.Namespace) -> str:
    """Write the folder and return the dtype of its weights."""
    from braidrl.trainer.state.export import export_adapter, export_model

    if options.adapter:
        export_adapter(source, options.target, options.base)
        return "float32"
    return export_model(source, options.target, options.dtype, options.base, options.trust_remote_code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="braid export", description=__doc__)
    parser.add_argument(
        "source", type=Path, help="run folder, checkpoint of a run, or Hugging Face model folder to convert"
    )
    parser.add_argument("target", type=Path, help="new folder for config, safetensors and tokenizer")
    parser.add_argument("--step", type=int, help="step to export from a run folder (default: the newest)")
    parser.add_argument(
        "--dtype", choices=DTYPES, help="dtype of the weights (default: that of the published weights)"
    )
    parser.add_argument(
        "--base",
        help="model that provides config, tokenizer and the base weights of an adapter (default: that of the run)",
    )
    parser.add_argument(
        "--adapter",
        action="store_true",
        help="write only the adapter, as a peft folder (default: merge it into its base model)",
    )
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="allow the model folder to run its own Python code"
    )
    return parser
