"""The trackers of a run: processes beside it that can neither stop nor slow it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.core.load import to_toml
from braidrl.configs.trackers import TrackConfig, TrackerConfig, labels
from braidrl.utils.log import tail
from braidrl.utils.run_folder import RunFolder

LAUNCHED = "--launched"
"""Flag of the launcher: standard input says how the run ended, and that label is the tracker's."""
TOO_LATE = 75
"""Exit code of a tracker that had to be cut off at the end."""
GRACE_SECONDS = 1.0
"""How much later than a tracker should have ended it is killed."""


@dataclass
class TrackerProcess:
    """A tracker's process."""

    label: str
    config: TrackerConfig
    popen: subprocess.Popen
    log: Path


def check_trackers(trackers: Sequence[TrackerConfig]) -> None:
    """Raise `ConfigError` where the library of a tracker is not installed. Imports none."""
    for index, tracker in enumerate(trackers):
        if tracker.type != "custom" and find_spec(tracker.type) is None:
            raise ConfigError(
                f"tracker[{index}].type",
                f"{tracker.type} is not installed: pip install 'braidrl[{tracker.type}]', or remove the tracker",
            )


@contextmanager
def tracking(trackers: Sequence[TrackerConfig], run: RunFolder) -> Iterator[None]:
    """Have `trackers` follow `run` while what is inside runs; in the end each gets its `close_timeout`."""
    if not trackers:
        yield
        return
    run.trackers.mkdir(parents=True, exist_ok=True)
    run.notices.unlink(missing_ok=True)
    started: list[TrackerProcess] = []
    status = "failed"
    try:
        for label, tracker in zip(labels(trackers), trackers, strict=True):
            started.append(_start(label, tracker, run))
        yield
        status = "done"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        _stop(started, status)


def _start(label: str, tracker: TrackerConfig, run: RunFolder) -> TrackerProcess:
    config = run.configs / f"tracker_{label}.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(to_toml(TrackConfig(run=run.root, tracker=tracker)))
    log = run.log(f"tracker_{label}")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        popen = subprocess.Popen(
            [sys.executable, "-m", "braidrl.cli", "track", "@", str(config), LAUNCHED, label],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return TrackerProcess(label, tracker, popen, log)


def _stop(started: Sequence[TrackerProcess], status: str) -> None:
    """Tell all of them how the run ended, wait for each as long as it may take, kill the rest, and say who failed."""
    now = time.monotonic()
    for each in started:
        assert each.popen.stdin is not None
        with suppress(OSError):  # it has ended already
            each.popen.stdin.write(f"{status}\n".encode())
            each.popen.stdin.close()
    for each in started:
        deadline = now + each.config.close_timeout + GRACE_SECONDS
        try:
            code = each.popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = TOO_LATE
        if code:
            with suppress(ProcessLookupError):
                os.killpg(each.popen.pid, signal.SIGKILL)
            each.popen.wait()
            print(f"braid rl: warning: {_complaint(each, code, status)}", file=sys.stderr)


def _complaint(each: TrackerProcess, code: int, status: str) -> str:
    late = f"was not ready {each.config.close_timeout:g} s after the end (tracker.close_timeout)"
    why = tail(each.log, 1).removeprefix("  | ")
    how = late if code == TOO_LATE else f"ended with exit code {code}: {why}"
    return (
        f"tracker {each.label} {how}; the run itself is not affected (it is {status}). Its log is {each.log}; send all "
        f"of it with `braid track @ {each.log.parents[1] / 'config' / f'tracker_{each.label}.toml'}`"
    )
