"""Captured heads, from a real engine to a training sample."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import renderers.client
import torch
from engine_helpers import plain_logprobs
from server_helpers import address_of, running

from braidrl.configs.orchestrator import GatewayConfig
from braidrl.orchestrator.engines.pool import Replicas
from braidrl.orchestrator.envs.source import TrainEnv
from braidrl.orchestrator.gateway.server import Gateway
from braidrl.orchestrator.train.algo.routing import assign_advantages
from braidrl.orchestrator.train.samples import flatten_trace
from braidrl.orchestrator.train.topk import MissingHeadError, call_key
from tests.support.stub_engine import StubEngine
from tests.support.stub_trainer import orchestrator_config

SIZE = 20
TEMPERATURE = 0.7
PROMPT = [64, 65, 66]


@asynccontextmanager
async def open_gateway(name: str, url: str, live: bool = True) -> AsyncIterator[Gateway]:
    replicas = Replicas([url], live=live)
    async with AsyncExitStack() as stack:
        await replicas.connect(10.0)
        stack.push_async_callback(replicas.close)
        gateway = Gateway(GatewayConfig(), {name: replicas}, seed=0, context=256)
        yield await stack.enter_async_context(gateway)


async def call(gateway: Gateway, session: str, **params: Any) -> tuple[int, dict[str, Any]]:
    name = next(iter(gateway.pools))
    sampling = {"temperature": TEMPERATURE, "logprobs": 1, "max_tokens": 16} | params
    body = {"model": name, "token_ids": PROMPT, "sampling_params": sampling}
    headers = {"X-Session-ID": session}
    url = f"{gateway.url}/inference/v1/generate"
    async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as response:
        return response.status, await response.json()


def check_head(ids_NK: np.ndarray, logprobs_NK: np.ndarray, rows_NV: torch.Tensor) -> None:
    """Assert that heads are the most likely tokens of these distributions over the whole vocabulary."""
    best = rows_NV.topk(ids_NK.shape[1], -1)
    np.testing.assert_allclose(logprobs_NK, best.values.numpy(), atol=1e-4)
    found = np.take_along_axis(
        rows_NV.numpy(), ids_NK, 1
    )  # compare values, because near ties may be in any order
    np.testing.assert_allclose(found, logprobs_NK, atol=1e-4)


async def test_the_gateway_captures_what_the_engine_sampled_from(tiny_model_dir: Path) -> None:
    """The environment gets the same answer as without capture."""
    answers = []
    async with running(tiny_model_dir) as server:
        url = await address_of(server)
        async with open_gateway(str(tiny_model_dir), url) as gateway:
            for session, size in (("with", SIZE), ("without", None)):
                gateway.open_session(session, "key", TEMPERATURE, size)
                status, answer = await call(gateway, session)
                assert status == 200, answer
                answers.append(answer)
            heads, nothing = (gateway.sessions.pop(name).heads for name in ("with", "without"))
    with_, without = (answer["choices"][0] for answer in answers)
    assert with_["token_ids"] == without["token_ids"]
    for ours, plain in zip(with_["logprobs"]["content"], without["logprobs"]["content"], strict=True):
        assert (ours["token"], ours["logprob"]) == (plain["token"], plain["logprob"])
        tops = [{top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in (ours, plain)]
        assert tops[0] == pytest.approx(tops[1], abs=1e-6)
    assert set(with_["logprobs"]) == {"content"}
    tokens = [*PROMPT, *with_["token_ids"]]
    assert list(heads) == [call_key(tokens, [entry["logprob"] for entry in with_["logprobs"]["content"]])]
    (head,) = heads.values()
    check_head(*head, plain_logprobs(tiny_model_dir, tokens, TEMPERATURE)[len(PROMPT) - 1 :])
    assert nothing == {}


async def test_a_head_may_be_the_whole_vocabulary(tiny_model_dir: Path) -> None:
    size = 1000
    async with (
        running(tiny_model_dir, max_logprobs=size + 2) as server,
        open_gateway(str(tiny_model_dir), await address_of(server)) as gateway,
    ):
        gateway.open_session("t", "key", TEMPERATURE, size)
        assert (await call(gateway, "t"))[0] == 200
        (head,) = gateway.sessions["t"].heads.values()
    vocabulary = (head.token_ids >= 0).sum(1)
    assert (vocabulary == vocabulary[0]).all() and 256 < vocabulary[0] < size
    np.testing.assert_allclose(np.exp(head.logprobs.astype(np.float64)).sum(1), 1, atol=1e-5)


@pytest.mark.parametrize(("live", "size"), [(True, None), (False, SIZE)])
async def test_only_training_calls_of_the_live_policy_are_captured(live: bool, size: int | None) -> None:
    async with StubEngine() as engine, open_gateway("tiny", engine.url, live) as gateway:
        gateway.open_session("t", "key", TEMPERATURE, size)
        assert (await call(gateway, "t"))[0] == 200
    assert engine.requests[0]["sampling_params"]["logprobs"] == 1
    assert "X-Braid-Logprobs" not in engine.headers[0]


async def test_missing_candidates_are_an_error() -> None:
    async with StubEngine() as engine, open_gateway("tiny", engine.url) as gateway:
        gateway.open_session("t", "key", TEMPERATURE, SIZE)
        status, answer = await call(gateway, "t")
        assert gateway.sessions["t"].heads == {}
    assert engine.requests[0]["sampling_params"]["logprobs"] == SIZE + 2
    assert status == 502
    assert "1 candidates for generated token 0, but 22 were requested" in answer["error"]["message"]


@asynccontextmanager
async def open_env(
    model: Path, url: str, train: dict[str, Any] | None = None, **source: Any
) -> AsyncIterator[TrainEnv]:
    renderers.client._max_prompt_len_lock = asyncio.Lock()  # bound to the event loop of an earlier test
    source = {"env": {"taskset": {"id": "guess-number", "guesses": 2}}, **source}
    settings = {
        "group_size": 2,
        "sampling": {"max_tokens": 12, "temperature": TEMPERATURE},
        "capture_head": SIZE,
        "source": [source],
        **(train or {}),
    }
    config = orchestrator_config(model, Path("run"), url, train=settings)
    async with open_gateway(str(model), url) as gateway:
        env = TrainEnv(config.train.source[0], config, gateway)
        async with env.serving():
            yield env


async def test_every_token_of_two_turns_has_its_head(tiny_model_dir: Path) -> None:
    async with (
        running(tiny_model_dir) as server,
        open_env(tiny_model_dir, await address_of(server)) as env,
    ):
        finished = await env.run(env.curriculum.next_task(), "key")
        assert env.gateway.sessions == {}
    (trace,) = finished.episode.traces
    assert finished.error is None
    assert sum(any(node.mask) for node in trace.nodes) == 2
    assign_advantages(trace, 0.5)
    heads = finished.heads[trace.id]
    samples = flatten_trace(trace, seq_len=256, temperature=TEMPERATURE, heads=heads).samples
    assert sum(sample.mask.sum() for sample in samples) == sum(sum(node.mask) for node in trace.nodes)
    for sample in samples:
        assert sample.head_ids is not None and sample.head_logprobs is not None
        assert sample.head_ids.shape == sample.head_logprobs.shape == (sample.mask.sum(), SIZE)
        rows = plain_logprobs(tiny_model_dir, sample.token_ids.tolist(), TEMPERATURE)
        check_head(sample.head_ids, sample.head_logprobs, rows[np.flatnonzero(sample.mask) - 1])
    with pytest.raises(MissingHeadError, match=f"trace {trace.id}, branch 0, token "):
        flatten_trace(trace, seq_len=256, heads=dict(list(heads.items())[1:]))


async def test_sources_without_an_rl_loss_capture_nothing(tiny_model_dir: Path) -> None:
    teacher = {"name": "teacher", "base_url": "http://127.0.0.1:9/v1"}
    async with StubEngine(model=str(tiny_model_dir)) as engine:
        async with open_env(tiny_model_dir, engine.url, algo={"type": "opd", "teacher": teacher}) as env:
            assert env.head_size is None
        async with open_env(tiny_model_dir, engine.url, {"capture_head": None}) as env:
            finished = await env.run(env.curriculum.next_task(), "key")
    assert finished.error is None
    assert not any(finished.heads.values())


async def test_a_cancelled_episode_frees_its_heads(tiny_model_dir: Path) -> None:
    async with (
        running(tiny_model_dir) as server,
        open_env(tiny_model_dir, await address_of(server)) as env,
    ):
        episode = asyncio.create_task(env.run(env.curriculum.next_task(), "key"))
        async with asyncio.timeout(30.0):
            while not any(session.heads for session in env.gateway.sessions.values()):
                await asyncio.sleep(0.005)
        (session,) = env.gateway.sessions.values()
        captured = weakref.ref(next(iter(session.heads.values())).token_ids)
        del session
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode
        assert env.gateway.sessions == {}
        del episode
        async with asyncio.timeout(5.0):  # the call in flight ends once it detects the closed connection
            while captured() is not None:
                await asyncio.sleep(0.01)
                gc.collect()
