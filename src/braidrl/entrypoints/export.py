"""`braid export SOURCE TARGET`: any policy of a run as an ordinary Hugging Face folder; an adapter merged, or alone."""

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
        raise ConfigError("target", f"{options.target} is there already; name a new folder")
    if options.adapter and options.dtype is not None:
        raise ConfigError("--dtype", "an adapter is written as it was trained, in float32; leave it away")
    try:
        dtype = _export(source, options)
    except OSError as error:
        raise ConfigError("--base", str(error)) from None
    except ValueError as error:
        raise ConfigError("source", str(error)) from None
    print(f"{options.target}: {source.checkpoint or source.weights} in {dtype}")
    return 0


def _export(source: ModelSource, options: argparse.Namespace) -> str:
    """Write the folder; the type of its weights."""
    from braidrl.trainer.state.export import export_adapter, export_model

    if options.adapter:
        export_adapter(source, options.target, options.base)
        return "float32"
    return export_model(source, options.target, options.dtype, options.base, options.trust_remote_code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="braid export", description=__doc__)
    parser.add_argument(
        "source", type=Path, help="a run folder, a checkpoint of one, or a Hugging Face folder to convert"
    )
    parser.add_argument("target", type=Path, help="new folder: config, safetensors, tokenizer")
    parser.add_argument("--step", type=int, help="which step of a run folder (default: its newest)")
    parser.add_argument(
        "--dtype", choices=DTYPES, help="type of the weights (default: as the run publishes them)"
    )
    parser.add_argument(
        "--base",
        help="model that the rest comes from: config, tokenizer, what lies below an adapter (default: the run's)",
    )
    parser.add_argument(
        "--adapter",
        action="store_true",
        help="write the adapter alone, as a peft folder (default: merged into its model)",
    )
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="allow the model folder to run its own Python code"
    )
    return parser
