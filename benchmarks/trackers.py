"""What trackers cost a run: work that keeps a core busy, beside each kind of tracker and alone, in turns.

    taskset -c 0 python benchmarks/trackers.py

Pinned to one core, so that a tracker has nowhere else to run. The work reports a step a second, as a fast trainer does.
The tracker is open by then; it is stopped and goes on in turns (SIGSTOP, SIGCONT). A ratio is the time of a piece of
work beside it over that of the next piece without: the median and the quartiles of all pairs. Its processor time is
that of opening, and from then on as a share of the time that it was not stopped.
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
"""Values of a line of metrics."""
SETTLE_SECONDS = 1.0


def kinds() -> dict[str, TrackerConfig]:
    """The trackers that are measured."""
    wrong = {
        name: CustomTrackerConfig(import_path=f"tracker_examples:{kind}", close_timeout=0.2)
        for name, kind in (
            ("raises", "Raises"),
            ("hangs", "Hangs"),
            ("computes for ever", "BurnsTheProcessor"),
        )
    }
    return {
        "tensorboard": TensorBoardTrackerConfig(),
        "wandb, offline": WandbTrackerConfig(mode="offline"),
        "mlflow, files": MLflowTrackerConfig(),
        **wrong,
    }


class Work:
    """Multiplies matrices and reports steps."""

    def __init__(self, run: RunFolder, repeats: int) -> None:
        self.writers = [MetricsWriter(run.metrics(process)) for process in ("trainer", "orchestrator")]
        self.matrix = np.random.default_rng(0).standard_normal((256, 256))
        self.repeats = repeats
        self.step = 0

    def seconds(self) -> float:
        """Wall time of a piece of work."""
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
    """Wait until the tracker of a run has written something, or has failed."""
    until = time.monotonic() + deadline
    while not any(path.is_file() for path in run.trackers.rglob("*")):
        if time.monotonic() > until:
            raise TimeoutError(f"no tracker has opened within {deadline:g} s; its log lies in {run.logs}")
        time.sleep(0.05)
    time.sleep(SETTLE_SECONDS)


def measure(name: str, config: TrackerConfig, pairs: int, repeats: int, folder: Path) -> None:
    """Print the figures of one tracker."""
    run = RunFolder(folder / name.replace(" ", "_"))
    work = Work(run, repeats)
    work.report()
    ratios, going = [], 0.0
    with redirect_stderr(io.StringIO()), tracking([config], run):  # which says what went wrong
        opened(run)
        opening = processor_seconds()
        for _ in range(pairs):
            beside = work.seconds()
            signal_trackers(signal.SIGSTOP)
            ratios.append(beside / work.seconds())
            signal_trackers(signal.SIGCONT)
            going += beside
        share = max(0.0, processor_seconds() - opening) / going  # of one that has ended there is none
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"{name:20}{middle:8.3f}  ({low:.3f} to {high:.3f}){opening:9.2f} s{share:9.2%}", flush=True)


def processor_seconds() -> float:
    """Of the trackers at work, and what they started."""
    ticks = 0
    for process in trackers():
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def signal_trackers(number: int) -> None:
    for process in trackers():
        os.kill(process, number)


def trackers(parent: int | None = None) -> Iterator[int]:
    """The processes below this one that have not ended."""
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
    parser.add_argument("--repeats", type=int, default=1000, help="multiplications of a piece of work")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(EXAMPLES)  # where the processes of trackers find those that go wrong
    print(f"{'tracker':20}{'ratio':>8}{'(quartiles)':>19}{'opening':>11}{'share':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for name, config in kinds().items():
            measure(name, config, options.pairs, options.repeats, Path(folder))


if __name__ == "__main__":
    main()
