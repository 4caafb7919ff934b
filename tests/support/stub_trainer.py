"""A stub trainer that takes batches and publishes empty weights, and a matching orchestrator config."""

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import renderers.client

from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.orchestrator.orchestrator import orchestrate
from braidrl.transport.rollouts import BatchReader
from braidrl.transport.types import TrainingBatch
from braidrl.utils.run_folder import RunFolder
from tests.support.stub_engine import StubEngine

POLL_SECONDS = 0.01


def orchestrator_config(model: Path, output_dir: Path, url: str, **settings: Any) -> OrchestratorConfig:
    """Return a config with batches of four tasks with four episodes, on the stub taskset. `env` overrides its keys."""
    source = {"env": {"taskset": {"id": "stub-tasks", **settings.pop("env", {})}}, "name": "stub"}
    defaults = {
        "max_steps": 2,
        "batch_size": 8,
        "seq_len": 256,
        "max_off_policy_steps": 0,
        "train": {"group_size": 4, "sampling": {"max_tokens": 16}, "source": [source]},
    }
    given = {"model": {"path": str(model)}, "output_dir": output_dir, "client": {"base_url": [url]}}
    renderer = {"renderer": {"name": "qwen3"}}
    return OrchestratorConfig.model_validate(defaults | given | renderer | settings)


async def train(run: RunFolder, seconds: float = 0.0, weights: Path | None = None) -> list[TrainingBatch]:
    """Until cancelled, take every batch and publish a version `seconds` later: an empty one, or always the same
    `weights`."""
    batches: list[TrainingBatch] = []
    reader = BatchReader(run)
    with suppress(asyncio.CancelledError):
        while True:
            for step in run.published("batches"):
                await asyncio.sleep(seconds)
                batches.append(reader.receive(step, timeout=1.0))
                publish(run.weights(step), weights)
                reader.remove(step)
            await asyncio.sleep(POLL_SECONDS)
    return batches


def publish(folder: Path, weights: Path | None) -> None:
    if weights is None:
        folder.mkdir(parents=True)
        return
    made = folder.with_name(f"{folder.name}.tmp")
    shutil.copytree(weights, made)
    made.rename(folder)


async def run_with_stubs(
    config: OrchestratorConfig,
    resume_step: int | None = None,
    seconds: float = 0.0,
    weights: Path | None = None,
) -> list[TrainingBatch]:
    """Run the orchestrator against the stub trainer and return its batches."""
    trainer = asyncio.create_task(train(RunFolder(config.output_dir), seconds, weights))
    await asyncio.sleep(0)
    try:
        await orchestrate(config, resume_step)
    finally:
        trainer.cancel()
    return await trainer


async def run_stub(model: Path, output_dir: Path, **settings: Any) -> tuple[list[TrainingBatch], StubEngine]:
    """Run once against a new stub engine."""
    # the package has one lock per process, but every test has its own event loop
    renderers.client._max_prompt_len_lock = asyncio.Lock()
    resume_step, seconds = settings.pop("resume_step", None), settings.pop("train_seconds", 0.0)
    async with StubEngine(model=str(model), **settings.pop("engine", {})) as engine:
        config = orchestrator_config(model, output_dir, engine.url, **settings)
        return await run_with_stubs(config, resume_step, seconds), engine
