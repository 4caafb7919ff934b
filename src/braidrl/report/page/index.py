"""Everything that a run has recorded so far, as a table: read once, in pieces, and again for what is new."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from braidrl.report.page.records import Episode, Lines, SampleRecord
from braidrl.utils.run_folder import STEP, RunFolder

ID = 16
"""Hex digits of an episode's id that the page knows it by."""
PREVIEW = 48
"""Characters of the last answer that the table shows."""
METRICS = ("trainer", "orchestrator", "eval")
EPISODE_COLUMNS = (
    *("id", "kind", "env", "step", "key", "reward", "advantage", "tokens", "turns", "branches"),
    *("oldest", "newest", "outcome", "state", "seconds", "preview"),
)
SAMPLE_COLUMNS = (
    *("episode", "trace", "branch", "step", "mini_batch", "micro_batch", "tokens", "rl", "ce", "ref_kl"),
)


class LineOffset(NamedTuple):
    """Where a line lies."""

    path: Path
    offset: int


class Index:
    """The rows of the run's files. `read` appends what is new; nothing that was read changes."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.metrics: dict[str, list[dict[str, Any]]] = {name: [] for name in METRICS}
        self.episodes: list[tuple[Any, ...]] = []
        """A row an episode, of `EPISODE_COLUMNS`."""
        self.samples: list[tuple[Any, ...]] = []
        """A row a sample of a batch that was trained, of `SAMPLE_COLUMNS`."""
        self.fates: list[tuple[str, str]] = []
        """What became of episodes, by key."""
        self.fate: dict[str, str] = {}
        self.places: dict[str, LineOffset] = {}
        """Records of episodes, by id."""
        self.sampled: dict[str, list[LineOffset]] = {}
        """Records of the samples of episodes, by id."""
        self._lines: dict[Path, Lines] = {}
        self._episode = msgspec.json.Decoder(Episode)
        self._sample = msgspec.json.Decoder(SampleRecord)

    def read(self, limit: int = 2000) -> bool:
        """Take in at most `limit` further lines; False when there were none."""
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
        """Whether lines that were read are no more: the run was resumed from a checkpoint, or started anew."""
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
    """The files `step_N.jsonl` of a folder, by step."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.glob("step_*.jsonl") if STEP.fullmatch(path.name))


def episode_row(episode: Episode, kind: str) -> tuple[Any, ...]:
    """The values of `EPISODE_COLUMNS`. Rewards and advantages are means over trainable traces and their sampled tokens,
    None where there are none."""
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
    """Rows as columns by name."""
    found = list(rows)
    return {name: [row[number] for row in found] for number, name in enumerate(names)}


def metric_columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Lines of metrics as columns by name, None where a line lacks the name."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


def _preview(episode: Episode) -> str:
    """The beginning of the last message that a model sampled."""
    sampled = [node for trace in episode.traces for node in trace.nodes if node.sampled]
    content = msgspec.json.decode(sampled[-1].message).get("content") if sampled else None
    return " ".join(content.split())[:PREVIEW] if isinstance(content, str) else ""
