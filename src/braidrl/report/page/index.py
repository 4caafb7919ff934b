"""Index of a run's recorded files as tables, read incrementally."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from braidrl.report.page.records import Episode, Lines, SampleRecord
from braidrl.utils.run_folder import STEP, RunFolder

ID = 16
"""Number of hex digits of an episode's id that the page uses."""
PREVIEW = 48
"""Maximum number of characters of the last answer shown in the table."""
METRICS = ("trainer", "orchestrator", "eval")
EPISODE_COLUMNS = (
    *("id", "kind", "env", "step", "key", "reward", "advantage", "tokens", "turns", "branches"),
    *("oldest", "newest", "outcome", "state", "seconds", "preview"),
)
SAMPLE_COLUMNS = (
    *("episode", "trace", "branch", "step", "mini_batch", "micro_batch", "tokens", "rl", "ce", "ref_kl"),
)


class LineOffset(NamedTuple):
    """Location of a line in a file."""

    path: Path
    offset: int


class Index:
    """Rows of the run's files. `read` appends new rows; existing rows never change."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.metrics: dict[str, list[dict[str, Any]]] = {name: [] for name in METRICS}
        self.episodes: list[tuple[Any, ...]] = []
        """One row per episode with the values of `EPISODE_COLUMNS`."""
        self.samples: list[tuple[Any, ...]] = []
        """One row per trained sample with the values of `SAMPLE_COLUMNS`."""
        self.fates: list[tuple[str, str]] = []
        """Pairs of episode key and outcome of its group, in the order of the ledger."""
        self.fate: dict[str, str] = {}
        """Latest outcome by episode key."""
        self.places: dict[str, LineOffset] = {}
        """Locations of episode records by episode id."""
        self.sampled: dict[str, list[LineOffset]] = {}
        """Locations of sample records by episode id."""
        self._lines: dict[Path, Lines] = {}
        self._episode = msgspec.json.Decoder(Episode)
        self._sample = msgspec.json.Decoder(SampleRecord)

    def read(self, limit: int = 2000) -> bool:
        """Read at most `limit` new lines. Return False if there were none."""
        left = limit
        for path, take in self._sources():
            lines = self._lines.setdefault(path, Lines(path))
            for offset, line in lines.read(left):
                take(LineOffset(path, offset), line)
                left -= 1
            if not left:
                break
        return left < limit

    def rewritten(self) -> bool:
        """Return True if lines that were read no longer exist: the run was resumed from a checkpoint or restarted."""
        return any(lines.shrunk() for lines in self._lines.values())

    def _sources(self) -> Iterator[tuple[Path, Any]]:
        for name in METRICS:
            yield self.run.metrics(name), self._metric
        yield self.run.metrics("groups"), self._group
        for kind, take in (("train", self._record), ("eval", self._record), ("tokens", self._tokens)):
            for path in step_files(self.run.root / "episodes" / kind):
                yield path, take

    def _metric(self, place: LineOffset, line: bytes) -> None:
        self.metrics[place.path.stem].append(msgspec.json.decode(line))

    def _group(self, place: LineOffset, line: bytes) -> None:
        group = msgspec.json.decode(line)
        for number in group["numbers"]:
            self.fates.append((f"{group['group']}/{number}", group["fate"]))
            self.fate[self.fates[-1][0]] = group["fate"]

    def _record(self, place: LineOffset, line: bytes) -> None:
        episode = self._episode.decode(line)
        self.places[episode.id[:ID]] = place
        self.episodes.append(episode_row(episode, place.path.parent.name))

    def _tokens(self, place: LineOffset, line: bytes) -> None:
        sample = self._sample.decode(line)
        self.sampled.setdefault(sample.episode[:ID], []).append(place)
        members = (sum(weight > 0 for weight in getattr(sample, name)) for name in ("rl", "ce", "ref_kl"))
        named = (sample.episode[:ID], sample.trace[:ID], sample.branch)
        batch = (sample.step, sample.mini_batch, sample.micro_batch)
        self.samples.append((*named, *batch, sample.tokens, *members))


def step_files(folder: Path) -> list[Path]:
    """Return the files `step_N.jsonl` of a folder, sorted by step."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.glob("step_*.jsonl") if STEP.fullmatch(path.name))


def episode_row(episode: Episode, kind: str) -> tuple[Any, ...]:
    """Return the values of `EPISODE_COLUMNS`.

    The reward is the mean over trainable traces, the advantage the mean over their sampled tokens. None if there are no
    values.
    """
    known = episode.braid
    trained = [trace for trace in episode.traces if trace.agent.trainable]
    rewards = [value for trace in trained if (value := known.rewards.get(trace.id)) is not None]
    nodes = [node for trace in trained for node in trace.nodes]
    versions = [version for calls in known.versions.values() for call in calls for version, _ in call]
    state = "error" if episode.errors and not episode.ok else "ok"
    if state == "ok" and any(trace.truncated for trace in episode.traces):
        state = "truncated"
    return (
        episode.id[:ID],
        kind,
        known.env,
        known.step,
        known.key,
        _mean(rewards),
        _mean([value for node in nodes for value in node.advantages or ()]),
        sum(trace.num_output_tokens for trace in episode.traces),
        sum(node.sampled for trace in episode.traces for node in trace.nodes),
        sum(trace.branches for trace in episode.traces),
        min(versions, default=None),
        max(versions, default=None),
        known.outcome,
        state,
        round(known.seconds, 3),
        _preview(episode),
    )


def columns(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    """Convert rows to columns by name."""
    found = list(rows)
    return {name: [row[number] for row in found] for number, name in enumerate(names)}


def metric_columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Convert lines of metrics to columns by name, with None where a line does not have the metric."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


def _preview(episode: Episode) -> str:
    """Return the beginning of the last sampled message."""
    sampled = [node for trace in episode.traces for node in trace.nodes if node.sampled]
    content = msgspec.json.decode(sampled[-1].message).get("content") if sampled else None
    return " ".join(content.split())[:PREVIEW] if isinstance(content, str) else ""
