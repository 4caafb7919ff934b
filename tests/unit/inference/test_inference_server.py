"""Inference server over real HTTP: compatibility with clients of stock vLLM."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from openai import AsyncOpenAI
from renderers.client import generate as renderers_generate
from server_helpers import generate, metric, post, running, wait_for_metric
from transformers import AutoTokenizer

from braidrl.configs.model import RendererConfig
from braidrl.utils.renderer import load_renderer
from braidrl.utils.tiny_model import create_tiny_model


@pytest.fixture
async def inference(tiny_model_dir: Path) -> AsyncIterator[aiohttp.ClientSession]:
    async with running(tiny_model_dir) as session:
        yield session


async def test_renderers_client_takes_the_answers(tiny_model_dir: Path):
    renderer = load_renderer(str(tiny_model_dir), RendererConfig(name="qwen3"))
    async with running(tiny_model_dir) as session:
        async with session.get("/health") as response:
            base_url = str(response.url.with_path("/v1"))
        client = AsyncOpenAI(base_url=base_url, api_key="none")
        result = await renderers_generate(
            client=client,
            renderer=renderer,
            messages=[{"role": "user", "content": "hello"}],
            model=str(tiny_model_dir),
            sampling_params={"temperature": 0.7, "max_tokens": 12, "seed": 1},
            cache_salt="v0",
        )
        await client.close()
    assert len(result["completion_ids"]) == len(result["completion_logprobs"]) > 0
    assert result["finish_reason"] in ("stop", "length")


async def test_one_token_keeps_its_log_prob_and_candidates(tiny_model_dir: Path):
    async with running(tiny_model_dir) as session:
        answer = await generate(session, [1, 2, 3], max_tokens=1, logprobs=3, seed=0)
    (choice,) = answer["choices"]
    (token,) = choice["token_ids"]
    (entry,) = choice["logprobs"]["content"]
    assert (choice["index"], choice["finish_reason"]) == (0, "length")
    assert entry["token"] == f"token_id:{token}" and entry["logprob"] < 0
    named = {candidate["token"]: candidate["logprob"] for candidate in entry["top_logprobs"]}
    assert named[entry["token"]] == entry["logprob"] and len(named) in (3, 4)
    assert answer["prompt_logprobs"] is None and answer["weight_versions"] == [[0, 1]]


async def test_prompt_logprobs_are_aligned_to_the_prompt(tiny_model_dir: Path):
    async with running(tiny_model_dir) as session:
        answer = await generate(session, [10, 20, 30], max_tokens=1, prompt_logprobs=1)
    first, second, third = answer["prompt_logprobs"]
    assert first is None and "20" in second and "30" in third
    assert set(second["20"]) == {"logprob", "rank", "decoded_token"}
    assert {entry["rank"] for entry in third.values()} >= {1}


async def test_every_stop_token_counts_as_stop_and_is_the_last_token(tiny_model_dir: Path):
    async with running(tiny_model_dir) as session:
        full = (await generate(session, [9], max_tokens=40, seed=4))["choices"][0]["token_ids"]
        first, second = full[5], full[17]
        for stops in ([second], [first, second]):
            (choice,) = (await generate(session, [9], max_tokens=40, seed=4, stop_token_ids=stops))["choices"]
            end = min(full.index(stop) for stop in stops) + 1
            assert choice["token_ids"] == full[:end] and choice["finish_reason"] == "stop"


async def test_the_models_own_end_token_ends_a_completion(tiny_model_dir: Path):
    end = AutoTokenizer.from_pretrained(tiny_model_dir).eos_token_id
    async with running(tiny_model_dir) as session:
        for seed in range(20):
            free = (await generate(session, [1], max_tokens=400, seed=seed))["choices"][0]["token_ids"]
            if end in free:
                break
        choice = (await generate(session, [1], max_tokens=400, seed=seed, ignore_eos=False))["choices"][0]
    assert choice["token_ids"] == free[: free.index(end) + 1] and choice["finish_reason"] == "stop"


async def test_the_context_limit_caps_and_refuses(tiny_model_dir: Path):
    async with running(tiny_model_dir, seq_len=16) as session:
        async with session.get("/v1/models") as response:
            (card,) = (await response.json())["data"]
        assert (card["id"], card["max_model_len"]) == (str(tiny_model_dir), 16)
        (choice,) = (await generate(session, [1] * 15, max_tokens=8))["choices"]
        assert len(choice["token_ids"]) == 1 and choice["finish_reason"] == "length"
        for length in (16, 17):
            status, answer = await post(session, "/inference/v1/generate", {"token_ids": [1] * length})
            assert status == 400
            assert "maximum context length is 16" in answer["error"]["message"]
            assert str(length) in answer["error"]["message"]


async def test_siblings_without_a_seed_differ_and_with_one_repeat(tiny_model_dir: Path):
    async with running(tiny_model_dir) as session:
        siblings = await asyncio.gather(*(generate(session, [1, 2], max_tokens=16) for _ in range(4)))
        repeated = await asyncio.gather(*(generate(session, [1, 2], max_tokens=16, seed=7) for _ in range(4)))
    tokens = [tuple(answer["choices"][0]["token_ids"]) for answer in siblings]
    assert len(set(tokens)) == 4
    assert len({tuple(answer["choices"][0]["token_ids"]) for answer in repeated}) == 1


async def test_a_client_that_disconnects_frees_its_slot(inference: aiohttp.ClientSession):
    body = {"token_ids": [1], "sampling_params": {"max_tokens": 500, "ignore_eos": True}}
    request = asyncio.create_task(post(inference, "/inference/v1/generate", body))
    await wait_for_metric(inference, "requests_running", 1)
    request.cancel()
    await wait_for_metric(inference, "requests_running", 0)
    assert await metric(inference, "generated_tokens_total") < 500


async def test_pause_holds_requests_until_resume(inference: aiohttp.ClientSession):
    running_request = asyncio.create_task(generate(inference, [1], max_tokens=400))
    await wait_for_metric(inference, "requests_running", 1)
    assert (await post(inference, "/pause"))[0] == 200
    before = await metric(inference, "generated_tokens_total")
    queued = asyncio.create_task(generate(inference, [2], max_tokens=3))
    await wait_for_metric(inference, "requests_waiting", 1)
    assert await metric(inference, "generated_tokens_total") == before < 400
    assert (await post(inference, "/resume"))[0] == 200
    assert len((await running_request)["choices"][0]["token_ids"]) == 400
    assert len((await queued)["choices"][0]["token_ids"]) == 3


async def test_weight_updates_are_serialised_and_acknowledged(
    inference: aiohttp.ClientSession, tiny_model_dir: Path, tmp_path: Path
):
    weights = [create_tiny_model(tmp_path / f"v{version}", seed=version) for version in (1, 2)]
    in_flight = asyncio.create_task(generate(inference, [1], max_tokens=400))
    await wait_for_metric(inference, "requests_running", 1)
    bodies = [{"path": str(path), "version": version} for version, path in enumerate(weights, 1)]
    answers = await asyncio.gather(*(post(inference, "/update_weights", body) for body in bodies))
    assert answers == [(200, {"version": 1}), (200, {"version": 2})]
    assert await metric(inference, "weight_version") == 2
    assert await metric(inference, "weight_updates_total") == 2
    spans = (await in_flight)["weight_versions"]
    assert sum(count for _, count in spans) == 400 and spans[-1][0] == 2
    assert [version for version, _ in spans] == sorted({version for version, _ in spans})
    async with running(weights[1]) as fresh:
        expected = await generate(fresh, [5, 6], max_tokens=10, seed=0, logprobs=0)
    found = await generate(inference, [5, 6], max_tokens=10, seed=0, logprobs=0)
    assert found["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"]
    status, answer = await post(inference, "/update_weights", {"path": str(tmp_path), "version": 3})
    assert status == 400 and str(tmp_path) in answer["error"]["message"]
    assert await metric(inference, "weight_version") == 2


async def test_chat_completions(inference: aiohttp.ClientSession, tiny_model_dir: Path):
    body = {
        "model": str(tiny_model_dir),
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_tokens": 6,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
        "ignore_eos": True,
    }
    status, answer = await post(inference, "/v1/chat/completions", body)
    assert status == 200, answer
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    messages = [{"role": "user", "content": "hi"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    tokens = (await generate(inference, prompt, max_tokens=6, temperature=0))["choices"][0]["token_ids"]
    (choice,) = answer["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": tokenizer.decode(tokens, skip_special_tokens=True),
    }
    assert [len(entry["top_logprobs"]) for entry in choice["logprobs"]["content"]] == [2] * 6
    assert answer["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": 6,
        "total_tokens": len(prompt) + 6,
    }
