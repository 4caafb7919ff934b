"""Readers of a run's JSONL files, and the parts of their records that the tables use."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec


class Agent(msgspec.Struct):
    name: str = ""
    trainable: bool = True


class Node(msgspec.Struct):
    message: msgspec.Raw
    parent: int | None = None
    sampled: bool = False
    advantages: list[float] | None = None


class RecordedCall(msgspec.Struct):
    finish_reason: str | None = None
    error: Any = None


class Trace(msgspec.Struct):
    id: str
    agent: Agent
    nodes: list[Node]
    calls: list[RecordedCall] = []
    stop_condition: str | None = None
    num_output_tokens: int = 0

    @property
    def truncated(self) -> bool:
        """True if a token limit cut off the trace."""
        last = next((call for call in reversed(self.calls) if call.error is None), None)
        return bool(last and last.finish_reason == "length")

    @property
    def branches(self) -> int:
        """Number of leaves of the message graph."""
        return len(self.nodes) - len({node.parent for node in self.nodes if node.parent is not None})


class RunFields(msgspec.Struct):
    """Fields that the run adds to an episode record."""

    env: str
    step: int
    key: str
    outcome: str
    group: str | None = None
    seconds: float = 0.0
    rewards: dict[str, float | None] = {}
    versions: dict[str, list[list[tuple[int, int]]]] = {}


class Episode(msgspec.Struct):
    """Fields of an episode record used by the table. Decoding skips all other fields."""

    id: str
    braid: RunFields
    traces: list[Trace] = []
    errors: list[Any] = []
    ok: bool = True


class SampleRecord(msgspec.Struct):
    """Fields of a sample record (`episodes/tokens`) used by the table."""

    step: int
    episode: str
    trace: str
    branch: int
    tokens: int
    mini_batch: int | None = None
    micro_batch: int | None = None
    rl: list[float] = []
    ce: list[float] = []
    ref_kl: list[float] = []


class Lines:
    """Incremental reader of the complete lines of a JSONL file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def shrunk(self) -> bool:
        """Return True if the file is shorter than what was read of it."""
        return self.offset > 0 and (not self.path.is_file() or self.path.stat().st_size < self.offset)

    def read(self, limit: int) -> Iterator[tuple[int, bytes]]:
        """Yield at most `limit` new lines with their byte offsets. An unfinished line is left for the next call."""
        if not self.path.is_file() or self.path.stat().st_size <= self.offset:
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for _ in range(limit):
                line = file.readline()
                if not line.endswith(b"\n"):
                    return
                start, self.offset = self.offset, self.offset + len(line)
                yield start, line


def line_at(path: Path, offset: int) -> bytes:
    """Return the line that starts at byte `offset`."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.readline()
