"""Measure how much of the shorter of generation and training is hidden by the longer one.

    python benchmarks/overlap.py [--bounds 0 1 4] [--steps 30] [--train-seconds SECONDS] [--surplus 1.0]

The orchestrator and the embedded engine run `reverse-text` with a tiny model. The trainer only simulates time: it takes
a batch, waits for the duration of a step on a separate device, and publishes weights. There are two runs for each
staleness bound. In the first, training takes no time, which gives the generation time of a step. In the second, it
takes `--train-seconds` (by default as long as generation, the hardest case). The script prints

    overlap efficiency = step time / max(training time, generation time, each alone),

which is 1 if the shorter one is hidden completely, and 2 if two equally long ones alternate.
"""

import argparse
import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.orchestrator.orchestrator import orchestrate
from braidrl.report.table import print_table
from braidrl.transport.rollouts import BatchReader
from braidrl.utils.process import free_port
from braidrl.utils.run_folder import RunFolder
from braidrl.utils.tiny_model import create_tiny_model

BATCH, GROUP, TOKENS = 32, 4, 48
WARMUP = 3
"""Number of first steps that are not counted."""


@dataclass
class ClockTrainer:
    """Simulated trainer that publishes the same weights `seconds` after each batch."""

    run: RunFolder
    weights: Path
    seconds: float
    arrivals: list[float] = field(default_factory=list)
    worked: list[float] = field(default_factory=list)
    staleness: int = 0

    async def train(self, steps: int) -> None:
        reader = BatchReader(self.run)
        for step in range(1, steps + 1):
            while step not in self.run.published("batches"):
                await asyncio.sleep(0.002)
            started = time.perf_counter()
            batch = reader.receive(step, timeout=1.0)
            versions = [sample.version_start for sample in batch.samples if sample.version_start is not None]
            self.staleness = max(self.staleness, step - 1 - min(versions))
            await asyncio.sleep(self.seconds)
            partial = self.run.root / "partial"
            await asyncio.to_thread(shutil.copytree, self.weights, partial)
            target = self.run.weights(step)
            target.parent.mkdir(exist_ok=True)
            partial.rename(target)
            reader.remove(step)
            self.arrivals.append(started)
            self.worked.append(time.perf_counter() - started)

    @property
    def step_seconds(self) -> float:
        """Mean time between two batches in seconds."""
        return (self.arrivals[-1] - self.arrivals[WARMUP]) / (len(self.arrivals) - 1 - WARMUP)

    @property
    def work_seconds(self) -> float:
        return sum(self.worked[WARMUP:]) / len(self.worked[WARMUP:])


@contextlib.contextmanager
def inference(model: Path, folder: Path) -> Iterator[str]:
    """Run an embedded engine in a separate process and yield its address."""
    port = free_port("127.0.0.1")
    config = folder / "inference.toml"
    config.write_text(f'port = {port}\nseq_len = 256\nthreads = 1\n[model]\npath = "{model}"\n')
    command = [sys.executable, "-m", "braidrl.cli", "inference", "@", str(config)]
    with (folder / "inference.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


async def serve_base(url: str, model: Path) -> None:
    """Wait for the engine and reset its weights to v0."""
    async with asyncio.timeout(60), aiohttp.ClientSession(url) as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                body = {"path": str(model), "version": 0}
                async with session.post("/update_weights", json=body) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)


async def play(
    url: str, model: Path, folder: Path, bound: int, seconds: float, args: argparse.Namespace
) -> ClockTrainer:
    """Run once and return the trainer with its recorded times."""
    await serve_base(url, model)
    source = {"env": {"taskset": {"id": "reverse-text"}}}
    settings = {
        "model": {"path": str(model)},
        "output_dir": folder,
        "client": {"base_url": [f"{url}/v1"]},
        "renderer": {"name": "qwen3", "enable_thinking": False},
        "max_steps": args.steps,
        "seq_len": 256,
        "batch_size": BATCH,
        "constant_trainer_batch_size": False,
        "max_off_policy_steps": bound,
        "oversampling_factor": args.surplus if bound else 1.0,
        "train": {"group_size": GROUP, "sampling": {"max_tokens": TOKENS}, "source": [source]},
    }
    trainer = ClockTrainer(RunFolder(folder), model, seconds)
    await asyncio.gather(orchestrate(OrchestratorConfig.model_validate(settings)), trainer.train(args.steps))
    return trainer


async def measure(url: str, model: Path, folder: Path, args: argparse.Namespace) -> None:
    rows = []
    for bound in args.bounds:
        alone = await play(url, model, folder / f"alone_{bound}", bound, 0.0, args)
        seconds = alone.step_seconds if args.train_seconds is None else args.train_seconds
        both = await play(url, model, folder / f"both_{bound}", bound, seconds, args)
        times = both.work_seconds, alone.step_seconds, both.step_seconds
        rows.append(
            [
                str(bound),
                *(f"{value:.3f}" for value in times),
                f"{both.step_seconds / max(times[:2]):.2f}",
                str(both.staleness),
            ]
        )
    head = ["bound", "training s", "generation s", "step s", "step / longer", "worst staleness"]
    print_table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bounds", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--train-seconds", type=float)
    parser.add_argument("--surplus", type=float, default=1.0, help="oversampling_factor")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = create_tiny_model(Path(folder) / "tiny")
        with inference(model, Path(folder)) as url:
            asyncio.run(measure(url, model, Path(folder), args))


if __name__ == "__main__":
    main()
