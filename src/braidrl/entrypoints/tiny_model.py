"""`braid tiny-model FOLDER`: create a tiny, randomly initialised model for experiments."""

import argparse
from pathlib import Path

from braidrl.configs.core.errors import ConfigError


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="braid tiny-model", description=__doc__)
    parser.add_argument("folder", type=Path, help="Hugging Face model folder to create")
    parser.add_argument("--hidden-size", type=int, default=128, help="hidden size (default: %(default)s)")
    parser.add_argument("--num-layers", type=int, default=3, help="number of layers (default: %(default)s)")
    parser.add_argument(
        "--context",
        type=int,
        default=512,
        help="context length in tokens, which are bytes (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the initial weights (default: %(default)s)"
    )
    options = parser.parse_args(args)
    from braidrl.utils.tiny_model import create_tiny_model

    try:
        create_tiny_model(
            options.folder,
            hidden_size=options.hidden_size,
            num_layers=options.num_layers,
            context=options.context,
            seed=options.seed,
        )
    except FileExistsError as error:
        raise ConfigError("folder", str(error)) from None
    print(options.folder)
    return 0
