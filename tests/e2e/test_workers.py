"""Environments in worker processes: episodes equal those in this process, and a worker that dies or hangs is
replaced."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from braidrl.configs.orchestrator import GatewayConfig
from braidrl.monitors.metrics import read_metrics
from braidrl.orchestrator.engines.pool import Replicas
from braidrl.orchestrator.envs import worker_pool as workers
from braidrl.orchestrator.envs.source import FinishedEpisode, TrainEnv
from braidrl.orchestrator.envs.worker_pool import WorkerError
from braidrl.orchestrator.gateway import sessions
from braidrl.orchestrator.gateway.server import Gateway
from tests.support.stub_engine import StubEngine
from tests.support.stub_trainer import orchestrator_config, run_stub

pytestmark = pytest.mark.slow


@asynccontextmanager
async def open_env(
    model: Path, folder: Path, *behaviours: str, workers: int = 1, **source: Any
) -> AsyncIterator[TrainEnv]:
    """Open a source with one task per behaviour."""
    async with StubEngine(model=str(model)) as engine:
        config = orchestrator_config(model, folder, engine.url)
        block = {"taskset": {"id": "worker-tasks", "behaviours": behaviours}}
        changes = {"env": block, "workers": workers, **source}
        replicas = Replicas([engine.url], live=True)
        async with (
            closing(replicas),
            Gateway(GatewayConfig(), {str(model): replicas}, seed=0, context=256) as gateway,
        ):
            env = TrainEnv(config.train.source[0].model_copy(update=changes), config, gateway)
            async with env.serving():
                yield env


@asynccontextmanager
async def closing(replicas: Replicas) -> AsyncIterator[None]:
    await replicas.connect(5.0)
    try:
        yield
    finally:
        await replicas.close()


async def play(env: TrainEnv, *indexes: int) -> list[FinishedEpisode]:
    """Run episodes of these tasks concurrently."""
    tasks = [env.curriculum.task_at(index) for index in indexes]
    return await asyncio.gather(*(env.run(task, f"stub/{index}") for index, task in zip(indexes, tasks)))


async def test_workers_play_what_this_process_would(tiny_model_dir: Path, tmp_path: Path) -> None:
    """Tokens, seeds and versions equal those of episodes in this process, and the load is spread over the workers."""
    async with open_env(tiny_model_dir, tmp_path, *["pid"] * 4, workers=2) as env:
        remote = await play(env, 0, 1, 2, 3)
        assert env.gateway.sessions == {}
    async with open_env(tiny_model_dir, tmp_path, *["pid"] * 4, workers=0) as env:
        local = await play(env, 0, 1, 2, 3)
    for mine, theirs in zip(remote, local, strict=True):
        (trace,), (wanted,) = mine.episode.traces, theirs.episode.traces
        assert mine.error is None and mine.episode.env.name == "stub"
        assert [node.token_ids for node in trace.nodes] == [node.token_ids for node in wanted.nodes]
        assert [node.logprobs for node in trace.nodes] == [node.logprobs for node in wanted.nodes]
        assert mine.versions(trace.id) == theirs.versions(wanted.id) == [0] * sum(trace.nodes[-1].mask)
        assert mine.episode.task.hash == theirs.episode.task.hash
        assert trace.task.data.behaviour == "pid"
        assert wanted.reward == os.getpid()
    assert len({each.episode.traces[0].reward for each in remote} - {os.getpid()}) == 2


async def test_a_worker_that_dies_or_hangs_is_replaced(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes of the worker fail promptly. A reward that blocks the worker fails its own episode and the others of
    that worker."""
    monkeypatch.setattr(workers, "STOP_SECONDS", 0.5)
    async with open_env(tiny_model_dir, tmp_path, "pid", "dies", "blocks") as env:
        (before,) = await play(env, 0)
        (dead,) = await play(env, 1)
        (after,) = await play(env, 0)
        assert env.workers.replaced == 1
        assert "WorkerError: environment worker stub/0 ended with exit code 7" in dead.error
        assert "I am about to die" in dead.error
        assert dead.episode.traces[0].nodes[-1].sampled  # sampled tokens are kept in the record
        assert before.error is after.error is None
        assert before.episode.traces[0].reward != after.episode.traces[0].reward

        env.source = env.source.model_copy(update={"timeout": 2.0})
        (late,) = await play(env, 2)
        assert late.episode.is_timeout and "was not generated and scored within 2 s" in late.error
        async with asyncio.timeout(60.0):
            while env.workers.replaced < 2:
                await asyncio.sleep(0.05)
            while not env.workers.all[0].ready:
                await asyncio.sleep(0.05)
        env.source = env.source.model_copy(update={"timeout": 60.0})
        (last,) = await play(env, 0)
    assert last.error is None


async def test_an_environment_that_no_worker_can_load(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes before the run starts and contains the output of the process."""
    monkeypatch.setattr("sys.path", ["/nowhere"])
    with pytest.raises(
        WorkerError, match=r"(?s)environment worker stub/0 ended with exit code 1.*ModuleNotFoundError"
    ):
        async with open_env(tiny_model_dir, tmp_path, "pid"):
            raise AssertionError("it cannot be served")


async def test_a_call_of_a_trace_that_nobody_reports_is_refused(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "NAME_SECONDS", 0.05)
    known = sessions.Sessions()
    assert await known.find("t") is None
    known.expect_late_traces()
    waiting = asyncio.create_task(known.find("soon"))
    await asyncio.sleep(0)
    known.open("soon", session := sessions.Session("key"))
    assert await waiting is session and await known.find(None) is None
    with pytest.raises(sessions.UnknownTraceError, match="no running episode has a trace 'never'"):
        await known.find("never")


async def test_a_run_with_workers_trains_what_a_run_without_does(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Two strictly on-policy steps have the same tokens, advantages and order."""
    alone, _ = await run_stub(tiny_model_dir, tmp_path / "alone")
    train = orchestrator_config(tiny_model_dir, tmp_path, "http://nowhere").train.model_dump(
        exclude_unset=True
    )
    apart, _ = await run_stub(tiny_model_dir, tmp_path / "apart", train=train | {"workers": 2})
    for mine, theirs in zip(apart, alone, strict=True):
        assert [sample.token_ids.tolist() for sample in mine.samples] == [
            sample.token_ids.tolist() for sample in theirs.samples
        ]
        assert [sample.advantages.tolist() for sample in mine.samples] == [
            sample.advantages.tolist() for sample in theirs.samples
        ]
    assert [
        line["workers/stub/replaced"]
        for line in read_metrics(tmp_path / "apart" / "metrics" / "orchestrator.jsonl")
    ] == [0, 0]
