"""Lines of a run's JSONL files: whole ones, with where they start, and as much of an episode as a table shows."""

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
        """Whether a token limit cut it off."""
        last = next((call for call in reversed(self.calls) if call.error is None), None)
        return bool(last and last.finish_reason == "length")

    @property
    def branches(self) -> int:
        """Leaves of its message graph."""
        return len(self.nodes) - len({node.parent for node in self.nodes if node.parent is not None})


class RunFields(msgspec.Struct):
    """What the run knows of an episode."""

    env: str
    step: int
    key: str
    outcome: str
    group: str | None = None
    seconds: float = 0.0
    rewards: dict[str, float | None] = {}
    versions: dict[str, list[list[tuple[int, int]]]] = {}


class Episode(msgspec.Struct):
    """The part of an episode's record that its line in the table needs; decoding it skips all others."""

    id: str
    braid: RunFields
    traces: list[Trace] = []
    errors: list[Any] = []
    ok: bool = True


class SampleRecord(msgspec.Struct):
    """The part of a sample's record (`episodes/tokens`) that says what it is."""

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
    """The complete lines of a JSONL file, in order, a bounded number at a time; goes on where it stopped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def shrunk(self) -> bool:
        """Whether the file has less than was read."""
        return self.offset > 0 and (not self.path.is_file() or self.path.stat().st_size < self.offset)

    def read(self, limit: int) -> Iterator[tuple[int, bytes]]:
        """At most `limit` further lines, each with the byte offset where it starts. One that lacks its end waits."""
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
    """The line that starts at `offset`."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.readline()
