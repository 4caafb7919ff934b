"""Discovery and summaries of run folders."""

import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from braidrl.monitors.follow import last_row
from braidrl.monitors.record import Launch, Outcome, outcome, read_record
from braidrl.utils.run_folder import RunFolder

DEPTH = 4
"""Maximum depth below a folder at which runs are searched."""
KINDS = ("rl", "sft", "eval")
"""Commands that create runs. Each writes its resolved config as `NAME.toml`."""
METRICS = ("trainer", "orchestrator", "eval")


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run."""

    run: RunFolder
    outcome: Outcome
    launches: list[Launch] = field(default_factory=list)
    kind: str | None = None
    """One of `KINDS`; None if the run has no config."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Resolved config; empty if the run has none."""
    last: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Last line of each metrics file, by process."""

    @property
    def step(self) -> int | None:
        """Last finished optimizer step, or last evaluated version for `eval` runs; None if there is none."""
        row = self.last.get("eval" if self.kind == "eval" else "trainer")
        return None if row is None else int(row["step"])

    @property
    def started(self) -> float | None:
        """Time of the first launch, in seconds since the epoch."""
        return self.launches[0].started if self.launches else None

    @property
    def seconds(self) -> float | None:
        """Total duration of all launches. A killed launch counts until its last sign of life."""
        if not self.launches:
            return None
        *earlier, newest = self.launches
        ended = newest.ended or self.outcome.ended or time.time()
        past = sum((each.ended or each.started) - each.started for each in earlier)
        return past + max(0.0, ended - newest.started)

    def metric(self, process: str, name: str) -> float | None:
        """Return the last value of a metric, or None if it was not reported."""
        return self.last.get(process, {}).get(name)


def find_runs(folder: Path, depth: int = DEPTH) -> Iterator[RunFolder]:
    """Yield the run folders at and below `folder`, sorted by path. Subfolders of a run are not searched."""
    run = RunFolder(folder)
    if run.record.is_file() or (folder / "metrics").is_dir():
        yield run
        return
    if depth == 0:
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            yield from find_runs(path, depth - 1)


def summarize(run: RunFolder) -> RunSummary:
    """Summarise a run without reading all of its files. Raises `ValueError` if its record or config is invalid."""
    rows = {name: row for name in METRICS if (row := last_row(run.metrics(name))) is not None}
    return RunSummary(run, outcome(run), read_record(run), kind_of(run), read_settings(run), rows)


def kind_of(run: RunFolder) -> str | None:
    """Return the command that created a run, or None if the run has no config."""
    return next((kind for kind in KINDS if (run.configs / f"{kind}.toml").is_file()), None)


def read_settings(run: RunFolder) -> dict[str, Any]:
    """Return the resolved config of a run, empty if it has none."""
    kind = kind_of(run)
    return {} if kind is None else tomllib.loads((run.configs / f"{kind}.toml").read_text())
