"""Readers of metrics files that another process is appending to."""

from pathlib import Path
from typing import Any

import msgspec

TAIL_BYTES = 1 << 16
"""Number of bytes first read from the end of a file to find its last line."""


class Follower:
    """Incremental reader of a JSONL file: each call returns the lines appended since the previous one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the new complete lines. An unfinished last line is returned by a later call.

        A file that became shorter, for example because the run resumed from an earlier step, is read from the start.
        """
        if not self.path.is_file():
            return []
        with self.path.open("rb") as file:
            if file.seek(0, 2) < self.offset:
                self.offset = 0
            file.seek(self.offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self.offset += len(complete)
        return [msgspec.json.decode(line) for line in complete.splitlines()]


def last_row(path: Path) -> dict[str, Any] | None:
    """Return the last complete line of a JSONL file without reading all of it, or None if there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        size = file.seek(0, 2)
        length = min(size, TAIL_BYTES)
        while True:
            file.seek(size - length)
            # The last piece is empty or an unfinished line. The first may be cut off, so at least two are required.
            lines = file.read(length).split(b"\n")[:-1]
            if len(lines) > 1 or length == size:
                return msgspec.json.decode(lines[-1]) if lines and lines[-1] else None
            length = min(size, 2 * length)
