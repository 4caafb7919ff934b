"""Run folders at a glance: where they are, how they ended, and what they reported last."""

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
"""How deep below a folder runs are looked for."""
KINDS = ("rl", "sft", "eval")
"""The commands that make runs; each leaves its resolved config under its name."""
METRICS = ("trainer", "orchestrator", "eval")


@dataclass(frozen=True)
class RunSummary:
    """What is told of a run."""

    run: RunFolder
    outcome: Outcome
    launches: list[Launch] = field(default_factory=list)
    kind: str | None = None
    """One of `KINDS`; None: it has no config."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Its resolved config; empty where it has none."""
    last: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The last line of each kind of metrics."""

    @property
    def step(self) -> int | None:
        """The last step whose optimizer step was taken, or the version that was evaluated; None: none was."""
        row = self.last.get("eval" if self.kind == "eval" else "trainer")
        return None if row is None else int(row["step"])

    @property
    def started(self) -> float | None:
        """When it was launched first, in seconds since 1970."""
        return self.launches[0].started if self.launches else None

    @property
    def seconds(self) -> float | None:
        """How long its launches took together; one that was killed, until its folder moved last."""
        if not self.launches:
            return None
        *earlier, newest = self.launches
        ended = newest.ended or self.outcome.ended or time.time()
        past = sum((each.ended or each.started) - each.started for each in earlier)
        return past + max(0.0, ended - newest.started)

    def metric(self, process: str, name: str) -> float | None:
        """The last value of a metric."""
        return self.last.get(process, {}).get(name)


def find_runs(folder: Path, depth: int = DEPTH) -> Iterator[RunFolder]:
    """The run folders in and below `folder`, by name. What lies within a run is not looked at."""
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
    """Read a little of a run folder. Raises `ValueError` where its record or its config cannot be read."""
    rows = {name: row for name in METRICS if (row := last_row(run.metrics(name))) is not None}
    return RunSummary(run, outcome(run), read_record(run), kind_of(run), read_settings(run), rows)


def kind_of(run: RunFolder) -> str | None:
    """The command that made a run; None where it left no config."""
    return next((kind for kind in KINDS if (run.configs / f"{kind}.toml").is_file()), None)


def read_settings(run: RunFolder) -> dict[str, Any]:
    """The resolved config of a run; empty where it has none."""
    kind = kind_of(run)
    return {} if kind is None else tomllib.loads((run.configs / f"{kind}.toml").read_text())
