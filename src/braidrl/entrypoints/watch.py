"""`braid watch RUN`: the page of `braid report`, live, on this machine alone."""

import argparse
import asyncio

from braidrl.configs.core.errors import ConfigError
from braidrl.entrypoints.report import add_run, run_of


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="braid watch", description=__doc__)
    add_run(parser)
    parser.add_argument(
        "--port", type=int, default=8710, help="port on 127.0.0.1 (default: %(default)s; 0: any)"
    )
    options = parser.parse_args(args)
    run = run_of(options.run)
    from braidrl.report.page.server import Watch, serve

    def ready(address: str) -> None:
        print(f"{run.root} at {address} (Ctrl-C ends it)", flush=True)

    try:
        asyncio.run(serve(Watch(run, options.tokenizer), options.port, ready))
    except OSError as error:
        raise ConfigError("--port", f"{error}; choose another, or 0 for any") from None
    return 0
