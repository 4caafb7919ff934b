"""Forwarding of a run's metrics to a tracker."""

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
    """Send the metrics of `run` after step `after` to `tracker` until the run has ended. Return its final status.

    Args:
        ended: waits up to the given number of seconds and returns the run's final status, or None while it is running.
    """
    followers = {process: Follower(run.metrics(process)) for process in PROCESSES}
    status = None
    while True:
        for process, step, row in _new_rows(followers, after):
            if metrics := named(process, row, config.metrics == "overview"):
                tracker.log(step, metrics)
        # Checked after reading, so that rows written just before the end are sent too.
        if status is not None:
            tracker.close(status)
            return status
        status = ended(POLL_SECONDS)


def tracked(run: RunFolder, label: str, continues: bool) -> Tracked:
    """Return the description of a run for a tracker. `continues`: the tracker received the earlier launches."""
    launches = read_record(run)
    settings = next(
        (run.configs / name for name in ("rl.toml", "sft.toml") if (run.configs / name).is_file()), None
    )
    # The id is derived from the first launch: unchanged on resume, new if another run reuses the folder.
    first = launches[0] if launches else None
    identity = f"{first.host} {first.pid} {first.started}" if first else ""
    return Tracked(
        name=run.root.absolute().name,
        id=hashlib.sha256(f"{run.root.absolute()} {identity}".encode()).hexdigest()[:12],
        after=launches[-1].after if continues and launches else 0,
        settings=_read_toml(settings) if settings is not None else {},
        folder=run.trackers / label,
    )


def _new_rows(followers: dict[str, Follower], after: int) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for process, follower in followers.items():
        for row in follower.read():
            if row["step"] > after:
                yield process, row["step"], row


def _read_toml(path: Any) -> dict[str, Any]:
    return tomllib.loads(path.read_text())
