"""Measure the cost of trackers: CPU-bound work with and without each kind of tracker, alternating.

    taskset -c 0 python benchmarks/trackers.py

All processes are pinned to one core, so that a tracker competes with the work. The work logs a step per second, like a
fast trainer. The tracker is already open, and is alternately stopped and resumed (SIGSTOP, SIGCONT). A ratio is the
time of a piece of work with the tracker over the time of the next piece without; the script prints median and quartiles
of all pairs. It also prints the CPU time of opening the tracker, and afterwards its share of the time when it is not
stopped.
"""

import argparse
import io
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np

from braidrl.configs.trackers import (
    CustomTrackerConfig,
    MLflowTrackerConfig,
    TensorBoardTrackerConfig,
    TrackerConfig,
    WandbTrackerConfig,
)
from braidrl.launch.tracker_processes import tracking
from braidrl.monitors.metrics import MetricsWriter
from braidrl.utils.run_folder import RunFolder

EXAMPLES = Path(__file__).parents[1] / "tests" / "support"
REPORT_SECONDS = 1.0
METRICS = 80
"""Number of values in a line of metrics."""
SETTLE_SECONDS = 1.0


def kinds() -> dict[str, TrackerConfig]:
    """Return the configs of the measured trackers by name."""
    faulty = {
        name: CustomTrackerConfig(import_path=f"tracker_examples:{kind}", close_timeout=0.2)
        for name, kind in (
            ("raises", "Raises"),
            ("hangs", "Hangs"),
            ("busy loop", "BurnsTheProcessor"),
        )
    }
    return {
        "tensorboard": TensorBoardTrackerConfig(),
        "wandb, offline": WandbTrackerConfig(mode="offline"),
        "mlflow, files": MLflowTrackerConfig(),
        **faulty,
    }


class Work:
    """Work that multiplies matrices and logs steps."""

    def __init__(self, run: RunFolder, repeats: int) -> None:
        self.writers = [MetricsWriter(run.metrics(process)) for process in ("trainer", "orchestrator")]
        self.matrix = np.random.default_rng(0).standard_normal((256, 256))
        self.repeats = repeats
        self.step = 0

    def seconds(self) -> float:
        """Do a piece of work and return its wall time in seconds."""
        started = reported = time.perf_counter()
        for _ in range(self.repeats):
            self.matrix @ self.matrix
            if time.perf_counter() - reported > REPORT_SECONDS:
                reported = time.perf_counter()
                self.report()
        return time.perf_counter() - started

    def report(self) -> None:
        self.step += 1
        for writer in self.writers:
            writer.log(self.step, {f"reward/{index}/mean": index / self.step for index in range(METRICS)})


def opened(run: RunFolder, deadline: float = 300.0) -> None:
    """Wait until the tracker of a run has written a file, and then `SETTLE_SECONDS` more."""
    until = time.monotonic() + deadline
    while not any(path.is_file() for path in run.trackers.rglob("*")):
        if time.monotonic() > until:
            raise TimeoutError(f"the tracker wrote no file within {deadline:g} s; see its log in {run.logs}")
        time.sleep(0.05)
    time.sleep(SETTLE_SECONDS)


def measure(name: str, config: TrackerConfig, pairs: int, repeats: int, folder: Path) -> None:
    """Print the measurements of one tracker."""
    run = RunFolder(folder / name.replace(" ", "_"))
    work = Work(run, repeats)
    work.report()
    ratios, active = [], 0.0
    with redirect_stderr(io.StringIO()), tracking([config], run):  # hides the errors of faulty trackers
        opened(run)
        opening = processor_seconds()
        for _ in range(pairs):
            tracked = work.seconds()
            signal_trackers(signal.SIGSTOP)
            ratios.append(tracked / work.seconds())
            signal_trackers(signal.SIGCONT)
            active += tracked
        share = max(0.0, processor_seconds() - opening) / active  # 0 if the tracker has exited
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"{name:20}{middle:8.3f}  ({low:.3f} to {high:.3f}){opening:9.2f} s{share:9.2%}", flush=True)


def processor_seconds() -> float:
    """Return the CPU time of the running trackers and their child processes in seconds."""
    ticks = 0
    for process in trackers():
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def signal_trackers(number: int) -> None:
    for process in trackers():
        os.kill(process, number)


def trackers(parent: int | None = None) -> Iterator[int]:
    """Yield the ids of the running descendants of a process, by default of this one."""
    parent = parent or os.getpid()
    for task in Path(f"/proc/{parent}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                yield child
                yield from trackers(child)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument(
        "--repeats", type=int, default=1000, help="number of multiplications in a piece of work"
    )
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(EXAMPLES)  # tracker processes import the faulty ones from there
    print(f"{'tracker':20}{'ratio':>8}{'(quartiles)':>19}{'opening':>11}{'share':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for name, config in kinds().items():
            measure(name, config, options.pairs, options.repeats, Path(folder))


if __name__ == "__main__":
    main()
