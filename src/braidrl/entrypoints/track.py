"""`braid track RUN --tracker.type TYPE`: send the metrics of a finished or running run to an experiment tracker.

`braid rl` starts this command for each `[[tracker]]` of its config. It runs in a separate process of low priority and
only reads the run folder, so a tracker cannot affect training.
"""

import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

import msgspec

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.core.load import load_config
from braidrl.configs.trackers import TrackConfig
from braidrl.launch.tracker_processes import LAUNCHED, TIMED_OUT
from braidrl.monitors.record import outcome
from braidrl.utils.run_folder import RunFolder

LEAST = 19
"""Nice value of a tracker during a run: it gets 1.4% of a core that another process uses fully."""
USUAL = 0
"""Nice value after the run has ended, if the system allows raising the priority again."""
OPENING_SECONDS = 30.0
"""Maximum time at normal priority during startup, in seconds. Importing the tracker's library takes most of it."""


def main(args: list[str]) -> int:
    label = None
    if LAUNCHED in args:
        at = args.index(LAUNCHED)
        label, args = args[at + 1], args[:at] + args[at + 2 :]
    elif args and not args[0].startswith(("-", "@")):
        args = ["--run", *args]
    config = load_config(TrackConfig, args, "braid track")
    run = RunFolder(config.run)
    if label is not None:
        return _track_launched(run, config, label)
    if not (run.root / "metrics").is_dir():
        raise ConfigError(
            "run",
            f"{run.root} is not a run folder: it has no metrics; `braid runs` lists the runs in a folder",
        )
    try:
        _track(run, config, config.tracker.type, RunEnd(run))
    except ConfigError:
        raise
    except Exception as error:  # the tracker's library may raise anything
        print(f"braid track: error: {config.tracker.type} failed: {_first_line(error)}", file=sys.stderr)
        return 1
    return 0


def set_priority(process: int, nice: int) -> None:
    """Set the priority of a process, its threads and its children, as far as the system allows."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, nice)
    for task in Path(f"/proc/{process}/task").glob("*"):
        with suppress(OSError):  # the thread has ended, or raising its priority is not permitted
            os.setpriority(os.PRIO_PROCESS, int(task.name), nice)
            for child in (task / "children").read_text().split():
                set_priority(int(child), nice)
    with suppress(OSError):  # Linux first divides a processor among sessions, by this value, then within each
        Path(f"/proc/{process}/autogroup").write_text(f"{nice}")


class RunEnd:
    """Outcome of a run, read from its record. A run folder without a record counts as `done`."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    def __call__(self, seconds: float) -> str | None:
        """Return the final status, or sleep for `seconds` and return None if the run is running."""
        status = outcome(self.run).status
        if status == "running":
            time.sleep(seconds)
            return None
        return "done" if status == "unknown" else status


class ExitStatusReader:
    """Outcome of a run, received from its launcher on standard input. End of file: the launcher was killed.

    After receiving it, the process exits within `close_timeout` seconds, even if the tracker hangs.
    """

    def __init__(self, close_timeout: float) -> None:
        self.close_timeout = close_timeout
        self.status: str | None = None
        self._received = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def __call__(self, seconds: float) -> str | None:
        """Wait up to `seconds` for the final status and return it, or None while the run is running."""
        self._received.wait(seconds)
        return self.status

    def _read(self) -> None:
        self.status = sys.stdin.readline().strip() or "killed"
        self._received.set()
        set_priority(os.getpid(), USUAL)
        time.sleep(self.close_timeout)
        os._exit(TIMED_OUT)  # not `sys.exit`, which would wait for the threads of the tracker


def _track_launched(run: RunFolder, config: TrackConfig, label: str) -> int:
    """Track a run for its launcher. An error is also written to the notices of the run. Return the exit code."""
    timer = threading.Timer(OPENING_SECONDS, set_priority, [os.getpid(), LEAST])
    timer.daemon = True
    timer.start()
    status = ExitStatusReader(config.tracker.close_timeout)
    try:
        _track(run, config, label, status)
    except Exception as error:  # the tracker's library may raise anything
        traceback.print_exc()
        with run.notices.open("ab") as file:
            file.write(msgspec.json.encode({"tracker": label, "message": _first_line(error)}) + b"\n")
        return 1
    return 0


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _track(run: RunFolder, config: TrackConfig, label: str, ended: RunEnd | ExitStatusReader) -> None:
    from braidrl.monitors.trackers import open_tracker
    from braidrl.monitors.trackers.send import tell, tracked

    description = tracked(run, label, continues=isinstance(ended, ExitStatusReader))
    tracker = open_tracker(config.tracker, description)
    if isinstance(ended, ExitStatusReader):
        set_priority(os.getpid(), LEAST)
    tell(run, config.tracker, tracker, description.after, ended)
