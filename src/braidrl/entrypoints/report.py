"""`braid report` and `braid watch`: the page of a run, as a file and served."""

import argparse
import asyncio
from pathlib import Path

from braidrl.configs.core.errors import ConfigError
from braidrl.utils.run_folder import RunFolder

MAX_MIB = 24.0


def main(args: list[str]) -> int:
    """`braid report RUN`: everything that a run recorded, as one HTML page that needs no network."""
    parser = argparse.ArgumentParser(prog="braid report", description=main.__doc__)
    add_run(parser)
    parser.add_argument("--output", type=Path, help="file to write (default: report.html in the run folder)")
    parser.add_argument(
        "--max-mib",
        type=float,
        default=MAX_MIB,
        help="most of the page that rollouts with all their tokens take (default: %(default)g); curves and the table "
        "come on top",
    )
    options = parser.parse_args(args)
    run = run_of(options.run)
    target = options.output or run.root / "report.html"
    from braidrl.report.page.write import write_report

    try:
        found = write_report(run, target, options.max_mib, options.tokenizer)
    except (OSError, ValueError) as error:
        raise ConfigError("report", str(error)) from None
    listed = f"{found['shown']} of {found['episodes']} rollouts listed"
    print(f"{target}: {found['bytes'] / 2**20:.1f} MiB, {listed}, {found['open']} with all their tokens")
    return 0


def watch(args: list[str]) -> int:
    """`braid watch RUN`: the page of `braid report`, live, on this machine alone."""
    parser = argparse.ArgumentParser(prog="braid watch", description=watch.__doc__)
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


def add_run(parser: argparse.ArgumentParser) -> None:
    """What `braid report` and `braid watch` are both told."""
    parser.add_argument("run", type=Path, help="run folder (output_dir of the run)")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        help="tokenizer.json, or a folder with one (default: that of the run's model)",
    )


def run_of(path: Path) -> RunFolder:
    """The run folder at `path`. Raises `ConfigError` where there is none."""
    if not any((path / name).is_dir() for name in ("metrics", "episodes", "config")):
        raise ConfigError("run", f"{path} is no run folder: it has no metrics, episodes or config")
    return RunFolder(path)
