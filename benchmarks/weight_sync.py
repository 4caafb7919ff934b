"""Measure size, publishing time and update time of a policy version: whole, as a delta and as an adapter.

    python benchmarks/weight_sync.py MODEL_FOLDER [--steps 2] [--rates 1e-6 1e-5] [--rank 16] [--dtype bfloat16]

Every row is a version after real AdamW steps from version 0 (GRPO on a synthetic batch). One embedded engine loads all
versions. After a delta, its weights must equal those of the whole version bit for bit.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from train_step import make_batch

from braidrl.configs.inference import InferenceConfig
from braidrl.configs.model import ModelConfig
from braidrl.configs.trainer.config import TrainerConfig
from braidrl.inference.engines.torch import TorchEngine
from braidrl.report.table import print_table
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.step import Learner
from braidrl.transport.types import TrainingSample
from braidrl.utils.run_folder import RunFolder

ALONE = Parallel(0, 1, torch.device("cpu"))


def config(options: argparse.Namespace, folder: Path, **settings: Any) -> TrainerConfig:
    model = {"path": options.folder, "dtype": options.dtype}
    settings |= {"model": model, "output_dir": folder, "threads": options.threads, "max_steps": options.steps}
    return TrainerConfig.model_validate(settings)


def versions(config: TrainerConfig, samples: list[TrainingSample]) -> list[tuple[Path, float]]:
    """Publish v0, v1, ... and return the folder of each and the seconds that publishing took."""
    run, learner, found = RunFolder(config.output_dir), Learner.load(config, ALONE), []
    for step in range(config.max_steps + 1):
        if step:
            learner.step(step, samples)
        start = time.perf_counter()
        learner.publish(run, step, whole=not config.weights.delta)
        found.append((run.weights(step), time.perf_counter() - start))
    return found


def take(engine: TorchEngine, folder: Path, version: int) -> tuple[float, dict[str, torch.Tensor]]:
    """Update the engine, and return the seconds of the update and the engine's weights after it."""
    start = time.perf_counter()
    engine.update_weights(folder, version).result()
    seconds = time.perf_counter() - start
    return seconds, {name: tensor.clone() for name, tensor in engine.model.module.state_dict().items()}


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def series(options: argparse.Namespace) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield name, comparison key and settings of each way to publish. Equal keys must give equal weights."""
    for rate in options.rates:
        for kind, delta in (("whole", False), ("delta", True)):
            yield f"{kind}, lr {rate}", rate, {"optim": {"lr": float(rate)}, "weights": {"delta": delta}}
    yield f"adapter, rank {options.rank}", "adapter", {"lora": {"rank": options.rank}}


def measure(options: argparse.Namespace, engine: TorchEngine, folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield one table row per version."""
    samples = make_batch(
        type(engine.model.module).from_pretrained(options.folder, dtype=torch.float32), 2, 4, 64
    ).samples
    expected: dict[tuple[str, int], dict[str, torch.Tensor]] = {}
    whole = 0
    for name, like, settings in series(options):
        engine.update_weights(Path(options.folder), 0).result()  # adapters are merged into version 0
        for version, (path, publish) in enumerate(
            versions(config(options, folder / name, **settings), samples)
        ):
            update, served = take(engine, path, version)
            wanted = expected.setdefault((like, version), served)
            assert all(torch.equal(tensor, wanted[key]) for key, tensor in served.items())
            whole = whole or size(path)
            if version:
                share = f"{100 * size(path) / whole:.1f}%"
                yield name, str(version), f"{size(path) / 1e6:.1f}", share, f"{publish:.2f}", f"{update:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rates", nargs="+", default=["1e-6", "1e-5"])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = ModelConfig(path=options.folder, dtype=options.dtype)
    engine = TorchEngine(InferenceConfig(model=model, threads=options.threads))
    engine.start()
    engine.loaded.result()
    with tempfile.TemporaryDirectory() as folder:
        rows = list(measure(options, engine, Path(folder)))
    engine.close()
    print_table(("published", "step", "MB", "of whole", "publish (s)", "update (s)"), rows)


if __name__ == "__main__":
    main()
