"""`braid track RUN --tracker.type TYPE`: send what a run has reported, and goes on reporting, to an experiment tracker.

`braid rl` starts one for each `[[tracker]]` of its config. It is a process of its own, of least priority, and
only reads the run folder: whatever a tracker does, training goes on.
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
from braidrl.launch.tracker_processes import LAUNCHED, TOO_LATE
from braidrl.monitors.record import outcome
from braidrl.utils.run_folder import RunFolder

LEAST = 19
"""Priority of a tracker at work: beside a process that computes it gets 1.4% of a core."""
USUAL = 0
"""And once the run has ended, where the system lets it have that again."""
OPENING_SECONDS = 30.0
"""For so long at most a tracker opens at the priority of everybody, for it imports a library first."""


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
        return _beside_a_run(run, config, label)
    if not (run.root / "metrics").is_dir():
        raise ConfigError("run", f"{run.root} is no run folder: it has no metrics; name one (`braid runs`)")
    try:
        _track(run, config, config.tracker.type, RunEnd(run))
    except ConfigError:
        raise
    except Exception as error:  # whatever the tracker's library raises
        print(f"braid track: error: {config.tracker.type} failed: {_in_a_line(error)}", file=sys.stderr)
        return 1
    return 0


def set_priority(process: int, nice: int) -> None:
    """Set the priority of a process, its threads and its children, as far as the system allows."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, nice)
    for task in Path(f"/proc/{process}/task").glob("*"):
        with suppress(OSError):  # it has ended meanwhile, or may not be raised
            os.setpriority(os.PRIO_PROCESS, int(task.name), nice)
            for child in (task / "children").read_text().split():
                set_priority(int(child), nice)
    with suppress(OSError):  # sessions share the processor before the processes in them do
        Path(f"/proc/{process}/autogroup").write_text(f"{nice}")


class RunEnd:
    """How a run ended, from its record. Its folder may have none: then it has ended."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    def __call__(self, seconds: float) -> str | None:
        status = outcome(self.run).status
        if status == "running":
            time.sleep(seconds)
            return None
        return "done" if status == "unknown" else status


class ExitStatusReader:
    """How a run ended, from its launcher, by standard input: a word, or nothing when the launcher was killed.

    From then on this process has `close_timeout` seconds, whatever the tracker does.
    """

    def __init__(self, close_timeout: float) -> None:
        self.close_timeout = close_timeout
        self.word: str | None = None
        self._said = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def __call__(self, seconds: float) -> str | None:
        self._said.wait(seconds)
        return self.word

    def _listen(self) -> None:
        self.word = sys.stdin.readline().strip() or "killed"
        self._said.set()
        set_priority(os.getpid(), USUAL)
        time.sleep(self.close_timeout)
        os._exit(TOO_LATE)


def _beside_a_run(run: RunFolder, config: TrackConfig, label: str) -> int:
    timer = threading.Timer(OPENING_SECONDS, set_priority, [os.getpid(), LEAST])
    timer.daemon = True
    timer.start()
    told = ExitStatusReader(config.tracker.close_timeout)
    try:
        _track(run, config, label, told)
    except Exception as error:  # whatever the tracker's library raises
        traceback.print_exc()
        with run.notices.open("ab") as file:
            file.write(msgspec.json.encode({"tracker": label, "message": _in_a_line(error)}) + b"\n")
        return 1
    return 0


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _track(run: RunFolder, config: TrackConfig, label: str, ended: RunEnd | ExitStatusReader) -> None:
    from braidrl.monitors.trackers import open_tracker
    from braidrl.monitors.trackers.send import tell, tracked

    told = tracked(run, label, continues=isinstance(ended, ExitStatusReader))
    tracker = open_tracker(config.tracker, told)
    if isinstance(ended, ExitStatusReader):
        set_priority(os.getpid(), LEAST)
    tell(run, config.tracker, tracker, told.after, ended)
