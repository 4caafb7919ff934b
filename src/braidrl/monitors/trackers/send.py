"""The reader that follows a run's metrics and tells a tracker."""

import hashlib
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

from braidrl.configs.trackers import BaseTrackerConfig
from braidrl.monitors.follow import Follower
from braidrl.monitors.record import read_record
from braidrl.monitors.trackers.contract import Tracked, Tracker
from braidrl.monitors.trackers.overview import named
from braidrl.utils.run_folder import RunFolder

PROCESSES = ("orchestrator", "trainer", "eval")
POLL_SECONDS = 2.0


def tell(
    run: RunFolder,
    config: BaseTrackerConfig,
    tracker: Tracker,
    after: int,
    ended: Callable[[float], str | None],
) -> str:
    """Tell `tracker` all that `run` reports after step `after`, until it has ended; how it ended.

    Args:
        ended: waits for so many seconds at most, and says how the run ended; None: it goes on.
    """
    followers = {process: Follower(run.metrics(process)) for process in PROCESSES}
    status = None
    while True:
        for process, step, row in _new(followers, after):
            if metrics := named(process, row, config.metrics == "overview"):
                tracker.log(step, metrics)
        if status is not None:
            tracker.close(status)
            return status
        status = ended(POLL_SECONDS)


def tracked(run: RunFolder, label: str, continues: bool) -> Tracked:
    """What a tracker is told of a run. `continues`: it was told of the launches before the last one."""
    launches = read_record(run)
    settings = next(
        (run.configs / name for name in ("rl.toml", "sft.toml") if (run.configs / name).is_file()), None
    )
    first = launches[0] if launches else None
    born = f"{first.host} {first.pid} {first.started}" if first else ""
    return Tracked(
        name=run.root.absolute().name,
        id=hashlib.sha256(f"{run.root.absolute()} {born}".encode()).hexdigest()[:12],
        after=launches[-1].after if continues and launches else 0,
        settings=_read(settings) if settings is not None else {},
        folder=run.trackers / label,
    )


def _new(followers: dict[str, Follower], after: int) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for process, follower in followers.items():
        for row in follower.read():
            if row["step"] > after:
                yield process, row["step"], row


def _read(path: Any) -> dict[str, Any]:
    return tomllib.loads(path.read_text())
