"""Episodes of a source: deadline, failures and names."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import renderers.client

from braidrl.configs.eval import EvalSourceConfig
from braidrl.configs.orchestrator import GatewayConfig
from braidrl.orchestrator.engines.pool import Replicas
from braidrl.orchestrator.envs.source import EvalEnv, TrainEnv
from braidrl.orchestrator.gateway.server import Gateway
from tests.support.stub_engine import StubEngine
from tests.support.stub_trainer import orchestrator_config


@asynccontextmanager
async def open_env(
    model: Path, engine: StubEngine, timeout: float = 10.0, **env: Any
) -> AsyncIterator[TrainEnv]:
    renderers.client._max_prompt_len_lock = asyncio.Lock()  # bound to the event loop of an earlier test
    config = orchestrator_config(model, Path("run"), engine.url, env=env)
    replicas = Replicas([engine.url], live=True)
    await replicas.connect(5.0)
    source = config.train.source[0].model_copy(update={"timeout": timeout})
    async with Gateway(GatewayConfig(), {str(model): replicas}, seed=0, context=256) as gateway:
        train = TrainEnv(source, config, gateway)
        async with train.serving():
            yield train
    await replicas.close()


async def test_an_episode_is_sampled_scored_and_named(tiny_model_dir: Path) -> None:
    async with StubEngine(model=str(tiny_model_dir)) as engine, open_env(tiny_model_dir, engine) as env:
        finished = await env.run(env.curriculum.next_task(), "stub-000000/0")
        again = await env.run(env.curriculum.task_at(0), "stub-000000/0")
    trace = finished.episode.traces[0]
    assert finished.error is None
    assert finished.episode.env.name == "stub"
    assert finished.versions(trace.id) == [0] * sum(trace.nodes[-1].mask)
    assert trace.nodes[-1].token_ids == again.episode.traces[0].nodes[-1].token_ids
    assert trace.id != again.episode.traces[0].id
    assert env.gateway.sessions == {}


async def test_one_deadline_covers_generation(tiny_model_dir: Path) -> None:
    engine = StubEngine(model=str(tiny_model_dir), latency=30.0)
    async with engine, open_env(tiny_model_dir, engine, timeout=1.0) as env:
        finished = await env.run(env.curriculum.next_task(), "key")
        assert finished.episode.is_timeout
        assert finished.error is not None
        assert (
            "not generated and scored within 1 s" in finished.error
            and "timeout of source 'stub'" in finished.error
        )
        assert len(finished.episode.traces) == 1
        async with asyncio.timeout(5.0):
            while not engine.cancelled:
                await asyncio.sleep(0.01)


async def test_the_same_deadline_covers_scoring(tiny_model_dir: Path) -> None:
    engine = StubEngine(model=str(tiny_model_dir))
    async with engine, open_env(tiny_model_dir, engine, timeout=1.0, behaviour="endless") as env:
        finished = await env.run(env.curriculum.next_task(), "key")
    trace = finished.episode.traces[0]
    assert finished.episode.is_timeout
    assert finished.error is not None
    assert "TimeoutError" in finished.error
    assert trace.nodes[-1].sampled  # sampled tokens are kept in the record
    assert not trace.ok


async def test_an_exception_of_an_environment_becomes_the_error_of_the_episode(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*args: Any, **kwargs: Any) -> None:
        raise KeyError("nobody expected this")

    async with StubEngine(model=str(tiny_model_dir)) as engine, open_env(tiny_model_dir, engine) as env:
        monkeypatch.setattr(env.env, "run_slot", broken)
        task = env.curriculum.next_task()
        finished = await env.run(task, "key")
    assert finished.error == "KeyError: 'nobody expected this'"
    assert "broken" in (finished.episode.errors[0].traceback or "")
    assert finished.episode.task.data == task.data


async def test_cancelling_an_episode_stops_its_generation(tiny_model_dir: Path) -> None:
    engine = StubEngine(model=str(tiny_model_dir), latency=30.0)
    async with engine, open_env(tiny_model_dir, engine) as env:
        running = asyncio.create_task(env.run(env.curriculum.next_task(), "key"))
        while not engine.requests:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert env.gateway.sessions == {}
        async with asyncio.timeout(5.0):
            while not engine.cancelled:
                await asyncio.sleep(0.01)


def test_evaluation_needs_a_finite_taskset(tiny_model_dir: Path) -> None:
    config = orchestrator_config(tiny_model_dir, Path("run"), "http://url")
    pools = {str(tiny_model_dir): Replicas(["url"], live=True)}
    gateway = Gateway(GatewayConfig(), pools, seed=0, context=64)
    source = EvalSourceConfig(env={"taskset": {"id": "stub-tasks", "num_tasks": 5}}, num_tasks=3)
    assert [task.data.idx for task in EvalEnv(source, config, gateway).tasks] == [0, 1, 2]
