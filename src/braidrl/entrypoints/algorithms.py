"""`braid algorithms`: what `algo.type` may be, in this installation."""

import argparse

from braidrl.configs.plugins import ALGORITHMS, InstalledAlgorithm
from braidrl.configs.reference import keys_of
from braidrl.report.table import print_table

HEADER = ("type", "what it is", "component", "waits for", "needs", "source", "comes from", "parameters")
HIDDEN = frozenset({"type", "sampling"})
"""Keys that every algorithm has."""


def main(args: list[str]) -> int:
    argparse.ArgumentParser(prog="braid algorithms", description=__doc__).parse_args(args)
    print_table(HEADER, [row(algorithm) for algorithm in ALGORITHMS.values()])
    return 0


def row(algorithm: InstalledAlgorithm) -> tuple[str, ...]:
    """One line of the table. Parameters are shown with their defaults, those to be set as `NAME (required)`."""
    config = algorithm.config
    needs = {"siblings": config.needs_group, "a served model": config.needs_model}
    parameters = [
        f"{key.path} (required)" if key.default is None else f"{key.path} = {shorten(key.default)}"
        for key in keys_of(config, hidden=HIDDEN)
    ]
    return (
        algorithm.name,
        " ".join((config.__doc__ or "").split("\n\n")[0].split()),
        config.action_loss_type,
        config.barrier,
        ", ".join(need for need, needed in needs.items() if needed) or "-",
        config.paper or "-",
        algorithm.origin,
        "\n".join(parameters) or "-",
    )


def shorten(text: str, width: int = 40) -> str:
    """`text`, cut to `width` characters."""
    return text if len(text) <= width else text[: width - 3] + "..."
