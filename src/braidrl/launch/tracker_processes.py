"""Tracker processes of a run. They are separate from the run, so that a tracker cannot stop or slow it down."""

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
"""Flag that the launcher adds, followed by the tracker's label. Standard input then receives the outcome of the run."""
TIMED_OUT = 75
"""Exit code of a tracker that exceeded `close_timeout`."""
GRACE_SECONDS = 1.0
"""Seconds after `close_timeout` until the launcher kills a tracker that has not exited by itself."""


@dataclass
class TrackerProcess:
    """Process of one tracker."""

    label: str
    config: TrackerConfig
    popen: subprocess.Popen
    log: Path


def check_trackers(trackers: Sequence[TrackerConfig]) -> None:
    """Raise `ConfigError` if the library of a tracker is not installed. Does not import the libraries."""
    for index, tracker in enumerate(trackers):
        if tracker.type != "custom" and find_spec(tracker.type) is None:
            raise ConfigError(
                f"tracker[{index}].type",
                f"{tracker.type} is not installed: pip install 'braidrl[{tracker.type}]', or remove this tracker",
            )


@contextmanager
def tracking(trackers: Sequence[TrackerConfig], run: RunFolder) -> Iterator[None]:
    """Run `trackers` during the body, and give each its `close_timeout` to finish afterwards."""
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
    """Send the outcome of the run to all trackers, wait up to each `close_timeout`, kill the rest, and print warnings.

    The timeouts run concurrently: the outcome is sent to all before the first wait.
    """
    now = time.monotonic()
    for each in started:
        assert each.popen.stdin is not None
        with suppress(OSError):  # the tracker has already exited
            each.popen.stdin.write(f"{status}\n".encode())
            each.popen.stdin.close()
    for each in started:
        deadline = now + each.config.close_timeout + GRACE_SECONDS
        try:
            code = each.popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = TIMED_OUT
        if code:
            with suppress(ProcessLookupError):
                os.killpg(each.popen.pid, signal.SIGKILL)
            each.popen.wait()
            print(f"braid rl: warning: {_failure_message(each, code, status)}", file=sys.stderr)


def _failure_message(each: TrackerProcess, code: int, status: str) -> str:
    late = f"did not finish within {each.config.close_timeout:g} s of the end (tracker.close_timeout)"
    last_line = tail(each.log, 1).removeprefix("  | ")
    how = late if code == TIMED_OUT else f"ended with exit code {code}: {last_line}"
    return (
        f"tracker {each.label} {how}. The run is not affected (status: {status}). See {each.log}; to send all metrics "
        f"again, run `braid track @ {each.log.parents[1] / 'config' / f'tracker_{each.label}.toml'}`"
    )
