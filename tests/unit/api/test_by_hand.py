"""The pipeline of the Python API against a stub engine, and its background thread."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import renderers.client

from braidrl.api.background import Background
from braidrl.api.pipeline import Pipeline
from braidrl.monitors.metrics import read_metrics
from braidrl.transport.types import TrainingBatch
from braidrl.utils.run_folder import RunFolder
from tests.support.stub_engine import StubEngine
from tests.support.stub_trainer import orchestrator_config, publish, run_stub

SETTINGS: dict[str, Any] = {"max_steps": 3, "constant_trainer_batch_size": False}


def content(batch: TrainingBatch) -> list[tuple[Any, ...]]:
    """Return what must be reproducible: order, tokens, credit and version."""
    return [
        (sample.group_id, sample.token_ids.tolist(), sample.advantages.tolist(), sample.version_start)
        for sample in batch.samples
        if sample.advantages is not None
    ]


async def test_batches_equal_those_of_a_run(tiny_model_dir: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "hand")
    whole, _ = await run_stub(tiny_model_dir, tmp_path / "whole", **SETTINGS)
    renderers.client._max_prompt_len_lock = asyncio.Lock()
    batches = []
    async with StubEngine(model=str(tiny_model_dir)) as engine:
        pipeline = Pipeline(orchestrator_config(tiny_model_dir, run.root, engine.url, **SETTINGS))
        living = asyncio.create_task(pipeline.live())
        await asyncio.wait_for(pipeline.opened(), 60)
        for step in (1, 2, 3):
            groups = await pipeline.sample()
            assert [len(group.episodes) for group in groups] == [4, 4]
            batches.append((await pipeline.score(groups)).training_batch)
            publish(run.weights(step), None)
            await asyncio.wait_for(pipeline.follow(step), 60)
        with pytest.raises(ValueError, match="was scored already; sample new ones"):
            await pipeline.score(groups)
        await pipeline.close()
        await asyncio.wait_for(living, 60)
    assert [content(batch) for batch in batches] == [content(batch) for batch in whole]
    assert all(content(batch) for batch in batches)
    rows = read_metrics(run.metrics("orchestrator"))
    theirs = read_metrics(RunFolder(tmp_path / "whole").metrics("orchestrator"))
    for name in ("step", "reward/mean", "batch/samples", "groups/dispatched", "tokens/sampled"):
        assert [row[name] for row in rows] == [row[name] for row in theirs], name
    assert [len(run.train_episodes(step).read_bytes().splitlines()) for step in (1, 2, 3)] == [8, 8, 8]


async def test_batch_contains_only_the_scored_groups(tiny_model_dir: Path, tmp_path: Path) -> None:
    renderers.client._max_prompt_len_lock = asyncio.Lock()
    async with StubEngine(model=str(tiny_model_dir)) as engine:
        pipeline = Pipeline(orchestrator_config(tiny_model_dir, tmp_path, engine.url, **SETTINGS))
        living = asyncio.create_task(pipeline.live())
        await asyncio.wait_for(pipeline.opened(), 60)
        first, second = await pipeline.sample(), await pipeline.sample()
        batch = (await pipeline.score([first[0], second[1]])).training_batch
        assert {sample.group_id for sample in batch.samples} == {first[0].id, second[1].id}
        nothing = (await pipeline.score([])).training_batch
        assert (nothing.step, nothing.samples) == (2, [])
        assert len(await pipeline.sample()) == 2
        await pipeline.close()
        await asyncio.wait_for(living, 60)


async def test_unreachable_server_raises_with_its_address(tiny_model_dir: Path, tmp_path: Path) -> None:
    keys = {"base_url": ["http://127.0.0.1:9/v1"], "startup_timeout": 0.2}
    pipeline = Pipeline(orchestrator_config(tiny_model_dir, tmp_path, "http://127.0.0.1:9/v1", client=keys))
    with pytest.raises(Exception, match=r"127\.0\.0\.1:9"):
        await asyncio.wait_for(pipeline.live(), 60)


def test_error_of_check_cancels_the_coroutine() -> None:
    background, ended = Background(), []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    def check() -> None:
        raise RuntimeError("a server died")

    with pytest.raises(RuntimeError, match="a server died"):
        background.call(work(), check)
    assert background.call(asyncio.sleep(0, "answer"), check) == "answer"
    background.close()
    assert ended == [True]
    with pytest.raises(RuntimeError, match="closed; open a new one"):
        background.call(work(), check)


async def test_call_from_a_running_event_loop() -> None:
    background = Background()
    started = time.monotonic()
    assert background.call(asyncio.sleep(0.3, "slept"), lambda: None) == "slept"
    assert time.monotonic() - started >= 0.3
    background.close()
