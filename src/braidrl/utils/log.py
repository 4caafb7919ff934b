"""Logging of every process: time, level, message, to standard output."""

import logging
import sys
from pathlib import Path

TAIL_LINES = 20
"""Last lines of a log that an error shows."""

QUIET = (
    "httpx",
    "httpx2",
    "httpcore",
    "httpcore2",
    "openai",
    "aiohttp.access",
    "asyncio",
    "verifiers",
    "renderers",
    "urllib3",
    "filelock",
)


def configure_logging(verbose: bool = False, file: Path | None = None) -> None:
    """Send log lines to `file` (None: standard output). Libraries speak from WARNING on, Braid from INFO (DEBUG when
    `verbose`)."""
    logging.basicConfig(
        handlers=[logging.StreamHandler(sys.stdout) if file is None else logging.FileHandler(file)],
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, which may not be there yet."""
    text = log.read_text(errors="replace").splitlines()[-lines:] if log.is_file() else []
    return "\n".join(f"  | {line}" for line in text) or "  | (nothing)"
