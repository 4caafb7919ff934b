"""`braid tiny-model FOLDER`: a small, randomly initialised model to try things on."""

import argparse
from pathlib import Path

from braidrl.configs.core.errors import ConfigError


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="braid tiny-model", description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write the Hugging Face folder")
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--num-layers", type=int, default=3)
    parser.add_argument("--context", type=int, default=512, help="context limit in tokens (bytes)")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights")
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
