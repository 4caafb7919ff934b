"""Inference server over real HTTP: responses to invalid requests and engine failures."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from server_helpers import DEADLINE, config_of, post, running

from braidrl.inference.engines.torch import TorchEngine
from braidrl.inference.routes.context import Context
from braidrl.inference.server import build_app, run, serve


@pytest.fixture
async def inference(tiny_model_dir: Path) -> AsyncIterator[aiohttp.ClientSession]:
    async with running(tiny_model_dir) as session:
        yield session


@pytest.mark.parametrize(
    ("body", "fragments"),
    [
        ({}, ["token_ids", "required"]),
        ({"token_ids": []}, ["at least 1"]),
        ({"token_ids": [1, -1]}, ["-1", "0 to 264"]),
        ({"token_ids": [1, 265]}, ["265", "0 to 264"]),
        ({"token_ids": ["1"]}, ["token_ids.0", "'1'"]),
        ({"token_ids": [1], "features": {}}, ["features"]),
        ({"token_ids": [1], "sampling_params": {"temperature": -1}}, ["temperature", "-1"]),
        ({"token_ids": [1], "sampling_params": {"top_p": 0}}, ["top_p", "greater than 0"]),
        ({"token_ids": [1], "sampling_params": {"max_tokens": 0}}, ["max_tokens"]),
        ({"token_ids": [1], "sampling_params": {"logprobs": 201}}, ["201", "at most 200"]),
        ({"token_ids": [1], "sampling_params": {"prompt_logprobs": 201}}, ["201", "at most 200"]),
        ({"token_ids": [1], "sampling_params": {"n": 2}}, ["sampling_params.n"]),
        ({"token_ids": [1], "sampling_params": {"repetition_penalty": 1.1}}, ["repetition_penalty", "1.1"]),
        ({"token_ids": [1], "sampling_params": {"tempratur": 1}}, ["tempratur"]),
    ],
)
async def test_bad_requests_say_what_is_wrong(
    inference: aiohttp.ClientSession, body: dict, fragments: list[str]
):
    status, answer = await post(inference, "/inference/v1/generate", body)
    assert status == 400
    for fragment in fragments:
        assert fragment in answer["error"]["message"]


async def test_other_refusals(inference: aiohttp.ClientSession):
    status, answer = await post(inference, "/inference/v1/generate", {"model": "nope", "token_ids": [1]})
    assert status == 404 and "`nope`" in answer["error"]["message"]
    assert (await post(inference, "/v1/nothing", {}))[0] == 404
    async with inference.post("/inference/v1/generate", data=b"{") as response:
        assert response.status == 400 and "not JSON" in (await response.json())["error"]["message"]
    async with inference.get("/pause") as response:
        assert response.status == 405 and "error" in await response.json()


async def test_an_api_key_is_required_when_one_is_set(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BRAID_TEST_KEY", "secret")
    body = {"token_ids": [1], "sampling_params": {"max_tokens": 1}}
    async with running(tiny_model_dir, api_key_var="BRAID_TEST_KEY") as session:
        async with session.get("/health") as response:
            assert response.status == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert (await post(session, "/inference/v1/generate", body, headers=headers))[0] == 401
        headers = {"Authorization": "Bearer secret"}
        assert (await post(session, "/inference/v1/generate", body, headers=headers))[0] == 200


def test_an_api_key_that_is_not_set_stops_the_server(tiny_model_dir: Path):
    with pytest.raises(ValueError, match="BRAID_NO_SUCH_KEY"):
        run(config_of(tiny_model_dir, api_key_var="BRAID_NO_SUCH_KEY"))


def test_a_model_that_cannot_be_loaded_stops_the_server(tmp_path: Path):
    with pytest.raises(Exception, match="nowhere"):
        run(config_of(tmp_path / "nowhere"))


async def test_health_waits_for_the_model(tiny_model_dir: Path):
    config = config_of(tiny_model_dir)
    async with TestClient(TestServer(build_app(Context(config, TorchEngine(config))))) as client:
        for path in ("/health", "/v1/models"):
            response = await client.get(path)
            assert response.status == 503 and "not loaded" in (await response.json())["error"]["message"]


async def test_a_failed_engine_fails_requests_and_ends_the_server(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    def fault(engine: TorchEngine) -> None:
        raise RuntimeError("the device fell off")

    monkeypatch.setattr(TorchEngine, "_step", fault)
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(config_of(tiny_model_dir), ready=address.set_result))
    async with aiohttp.ClientSession(await asyncio.wait_for(address, DEADLINE)) as session:
        status, answer = await post(session, "/inference/v1/generate", {"token_ids": [1]})
    assert status == 500 and "the device fell off" in answer["error"]["message"]
    with pytest.raises(RuntimeError, match="the device fell off"):
        await asyncio.wait_for(server, DEADLINE)


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"stream": True}, "stream"),
        ({"n": 2}, "n:"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "maximum context length is 512"),
        ({"messages": [{"content": "no role"}]}, "chat template"),
    ],
)
async def test_chat_refusals(inference: aiohttp.ClientSession, change: dict, fragment: str):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **change}
    status, answer = await post(inference, "/v1/chat/completions", body)
    assert status == 400 and fragment in answer["error"]["message"]
