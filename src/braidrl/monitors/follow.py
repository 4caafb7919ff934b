"""Reading metrics while somebody writes them."""

from pathlib import Path
from typing import Any

import msgspec

TAIL_BYTES = 1 << 16
"""How much of a file's end is read first to find its last line."""


class Follower:
    """Reads the complete lines that were appended to a JSONL file since the last call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def read(self) -> list[dict[str, Any]]:
        """New rows; a line that is not finished yet waits for the next call. A file that became shorter, as when a run
        is resumed from an earlier step, is read from its start."""
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
    """The last complete line of a JSONL file, however long the file is; None where there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        size = file.seek(0, 2)
        length = min(size, TAIL_BYTES)
        while True:
            file.seek(size - length)
            lines = file.read(length).split(b"\n")[:-1]
            if len(lines) > 1 or length == size:
                return msgspec.json.decode(lines[-1]) if lines and lines[-1] else None
            length = min(size, 2 * length)
