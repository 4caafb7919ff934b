"""`braid report` and `braid watch`: HTML report of a run, as a file or served live."""

import argparse
import asyncio
from pathlib import Path

from braidrl.configs.core.errors import ConfigError
from braidrl.utils.run_folder import RunFolder

MAX_MIB = 24.0


def main(args: list[str]) -> int:
    """`braid report RUN`: write everything that a run recorded to one self-contained HTML page."""
    parser = argparse.ArgumentParser(prog="braid report", description=main.__doc__)
    add_run(parser)
    parser.add_argument("--output", type=Path, help="file to write (default: report.html in the run folder)")
    parser.add_argument(
        "--max-mib",
        type=float,
        default=MAX_MIB,
        help="maximum size of the rollouts with per-token values (default: %(default)g); the curves and the table of "
        "rollouts are added to it",
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
    print(f"{target}: {found['bytes'] / 2**20:.1f} MiB, {listed}, {found['open']} with per-token values")
    return 0


def watch(args: list[str]) -> int:
    """`braid watch RUN`: serve a live version of the `braid report` page on this machine (127.0.0.1)."""
    parser = argparse.ArgumentParser(prog="braid watch", description=watch.__doc__)
    add_run(parser)
    parser.add_argument(
        "--port", type=int, default=8710, help="port on 127.0.0.1 (default: %(default)s; 0: any free port)"
    )
    options = parser.parse_args(args)
    run = run_of(options.run)
    from braidrl.report.page.server import Watch, serve

    def ready(address: str) -> None:
        print(f"{run.root} at {address} (press Ctrl-C to stop)", flush=True)

    try:
        asyncio.run(serve(Watch(run, options.tokenizer), options.port, ready))
    except OSError as error:
        raise ConfigError("--port", f"{error}; choose another port, or 0 for any free one") from None
    return 0


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `braid report` and `braid watch` share."""
    parser.add_argument("run", type=Path, help="run folder (output_dir of the run)")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        help="tokenizer.json or a folder that contains it (default: that of the run's model)",
    )


def run_of(path: Path) -> RunFolder:
    """Return the run folder at `path`. Raises `ConfigError` if it is not one."""
    if not any((path / name).is_dir() for name in ("metrics", "episodes", "config")):
        raise ConfigError(
            "run",
            f"{path} is not a run folder: it has no metrics, episodes or config; give the output_dir of a run",
        )
    return RunFolder(path)
