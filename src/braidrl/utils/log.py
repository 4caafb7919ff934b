"""Logging of every process: time, level, message, to standard output."""

import logging
import sys

QUIET = (
    "httpx",
    "httpx2",
    "openai",
    "aiohttp.access",
    "asyncio",
    "verifiers",
    "renderers",
    "urllib3",
    "filelock",
)


def configure_logging(verbose: bool = False) -> None:
    """Send log lines to standard output. Libraries speak from WARNING on, Braid from INFO (DEBUG when `verbose`)."""
    logging.basicConfig(
        stream=sys.stdout,
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
