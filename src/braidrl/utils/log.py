"""Log format and log levels of all processes."""

import logging
import sys
from pathlib import Path

TAIL_LINES = 20
"""Number of trailing log lines quoted in an error message."""

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
    """Log to `file` (None: standard output) from INFO, or from DEBUG if `verbose`.

    The libraries in `QUIET` log from WARNING.
    """
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
    """Return the last lines of a log, indented for an error message. The file may not exist yet."""
    text = log.read_text(errors="replace").splitlines()[-lines:] if log.is_file() else []
    return "\n".join(f"  | {line}" for line in text) or "  | (nothing)"
