"""Features of a stock vLLM server that runs use: sampling, scoring, weight updates and the queue length."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from braidrl.orchestrator.engines.health import engine_queue, gauge
from braidrl.orchestrator.engines.pool import GENERATE, ReplicaError, Replicas
from braidrl.orchestrator.gateway.protocol import GenerateRequest, read_spans
from braidrl.orchestrator.train.algo.reference import Reference
from braidrl.orchestrator.train.topk import call_key
from braidrl.utils.http import bearer
from braidrl.utils.tiny_model import create_tiny_model
from tests.engines.servers import serving, settings, wait_ready
from tests.support.runs import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEY = "a-key-of-the-tests"
TOLERANCE = 1e-5
"""Tolerance for float32 rounding of a log-prob."""
DEADLINE = 60.0
SLOTS = 4
"""Maximum number of concurrent calls of a server."""
PROMPT = torch.randint(0, 256, (150,), generator=torch.Generator().manual_seed(1)).tolist()
"""Token ids of a prompt that is longer than a block of the prefix cache."""


@dataclass
class Servers:
    """Addresses of a server of the policy, and of a frozen server without the routes for weight updates."""

    policy: str
    frozen: str


@pytest.fixture(scope="module")
def servers(
    vllm_python: Path, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    """Two servers, started at the same time."""
    folder = tmp_path_factory.mktemp("servers")
    block = {"model": {"path": str(small_model)}, "seq_len": 2048, "max_batch_size": SLOTS, "threads": 1}
    policy = {**block, **settings(vllm_python), "api_key_var": "BRAID_TEST_KEY"}
    frozen = {**block, **settings(vllm_python, VLLM_SERVER_DEV_MODE="0")}
    with ExitStack() as stack:
        urls = [
            stack.enter_context(serving(folder / "policy", policy, BRAID_TEST_KEY=KEY)),
            stack.enter_context(serving(folder / "frozen", frozen)),
        ]
        for name, url in zip(("policy", "frozen"), urls):
            wait_ready(url, folder / name / "inference.log")
        yield Servers(*urls)


@pytest.fixture(scope="module")
def versions(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A sequence of weight folders, as if each were trained from the one before. The first is the initial model."""
    folder, generator = tmp_path_factory.mktemp("weights"), torch.Generator().manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.float32)
    paths = [small_model]
    for version in (1, 2, 3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)
        paths.append(folder / f"step_{version}")
        model.save_pretrained(paths[-1])
        AutoTokenizer.from_pretrained(small_model).save_pretrained(paths[-1])
    return paths


def logprobs_TV(path: Path, token_ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Return log-probs f64[T - 1, V] of a plain forward; row t describes token t + 1. In double precision, so that
    rounding of the reference does not use up the tolerance."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    with torch.no_grad():
        return (model(torch.tensor([token_ids])).logits[0, :-1] / temperature).log_softmax(-1)


def of_tokens(path: Path, token_ids: list[int]) -> list[float]:
    """Return the log-prob of each token except the first."""
    return logprobs_TV(path, token_ids)[range(len(token_ids) - 1), token_ids[1:]].tolist()


@asynccontextmanager
async def policy_pool(servers: Servers) -> AsyncIterator[Replicas]:
    pool = Replicas([servers.policy], live=True, headers=bearer(KEY))
    try:
        await pool.connect(DEADLINE)
        yield pool
    finally:
        await pool.close()


async def generate(pool: Replicas, model: Path, prompt: list[int], **sampling: Any) -> bytes:
    body = {"model": str(model), "token_ids": prompt, "sampling_params": {"logprobs": 1, **sampling}}
    async with pool.http.post(pool.all[0].url + GENERATE, json=body) as response:
        answer = await response.read()
        assert response.status == 200, answer
        return answer


def sampled(body: bytes) -> tuple[list[int], list[float]]:
    """Return the tokens of an answer and their log-probs."""
    (choice,) = msgspec.json.decode(body)["choices"]
    return choice["token_ids"], [entry["logprob"] for entry in choice["logprobs"]["content"]]


async def under_way(pool: Replicas, model: Path, prompt: list[int], seed: int) -> asyncio.Task[bytes]:
    """Start a call and pause the server when it has sampled only some of its tokens. On a busy machine, the call may
    have ended or not yet started at the time of the pause; then try again."""
    async with asyncio.timeout(DEADLINE):
        while True:
            call = asyncio.create_task(
                generate(pool, model, prompt, max_tokens=450, seed=seed, ignore_eos=True)
            )
            await generate(pool, model, PROMPT, max_tokens=8)
            await control(pool, "/pause?mode=keep")
            done, _ = await asyncio.wait([call], timeout=1)
            if not done and await running(pool) == 1:
                return call
            await control(pool, "/resume")
            await call


async def running(pool: Replicas) -> int | None:
    """Return the number of running calls at the server's last step."""
    return gauge((await pool.read(pool.all[0], "/metrics")).decode(), "vllm:num_requests_running")


async def control(pool: Replicas, route: str) -> None:
    async with pool.http.post(pool.all[0].url + route) as response:
        assert response.status == 200, await response.read()


async def check_update(
    pool: Replicas, model: Path, prompt: list[int], version: int, long: asyncio.Task[bytes], paths: list[Path]
) -> None:
    """Check calls after an update to `version`. A new call is sampled by the new policy. In the call in flight, tokens
    sampled before the update keep the old version and log-probs, and the new policy samples the rest, given all tokens
    before."""
    body = await generate(pool, model, PROMPT, max_tokens=16, seed=version)
    tokens, logprobs = sampled(body)
    assert read_spans(body, version) == [(version, len(tokens))]
    expected = of_tokens(paths[version], [*PROMPT, *tokens])[len(PROMPT) - 1 :]
    assert logprobs == pytest.approx(expected, abs=TOLERANCE)

    tokens, logprobs = sampled(body := await long)
    (old, before), (new, after) = read_spans(body, version)
    assert (old, new) == (version - 1, version) and before > 0 and after > 0
    for path, part in ((paths[old], slice(0, before)), (paths[new], slice(before, None))):
        expected = of_tokens(path, prompt + tokens)[len(prompt) - 1 :]
        assert logprobs[part] == pytest.approx(expected[part], abs=TOLERANCE)


async def test_it_serves_the_weights_of_every_update(
    servers: Servers, small_model: Path, versions: list[Path]
) -> None:
    """Updates in place, each with a request in flight. Its tokens sampled before the update keep the old version and
    log-probs, and the new policy samples the rest. Prefixes cached with the old weights are discarded."""
    async with policy_pool(servers) as pool:
        replica = pool.all[0]
        for version in (1, 2, 3):
            prompt = [version] * 20
            long = await under_way(pool, small_model, prompt, seed=version)
            await pool.update(replica, versions[version], version, DEADLINE)
            assert (replica.version, replica.state) == (version, "open")
            await check_update(pool, small_model, prompt, version, long, versions)


async def test_its_candidates_are_the_heads_of_score_centering(servers: Servers, small_model: Path) -> None:
    """The most likely tokens of a plain forward and their log-probs, at the temperature of the request."""
    sampling = {"max_tokens": 12, "temperature": 0.7, "logprobs": 0, "ignore_eos": True}
    body = {"model": str(small_model), "token_ids": PROMPT, "sampling_params": sampling}
    request = GenerateRequest(msgspec.json.encode(body))
    async with aiohttp.ClientSession() as http:
        sent = request.encode(seed=5, salt=None, head_size=20)
        headers = {"Content-Type": "application/json"}
        async with http.post(servers.frozen + GENERATE, data=sent, headers=headers) as response:
            answer, heads = request.take_heads(await response.read(), 20)
    tokens, logprobs = sampled(answer)
    head = heads[call_key([*PROMPT, *tokens], logprobs)]
    expected = logprobs_TV(small_model, [*PROMPT, *tokens], temperature=0.7)[len(PROMPT) - 1 :].topk(20)
    assert head.logprobs == pytest.approx(expected.values.numpy(), abs=TOLERANCE)
    assert head.token_ids.tolist() == expected.indices.tolist()


async def test_it_scores_prompts_for_distillation(servers: Servers, small_model: Path) -> None:
    reference = Reference(str(small_model), [servers.frozen], timeout=DEADLINE)
    async with reference:
        await reference.check_tokenizer(str(small_model))
        scores = await reference.score(PROMPT)
    assert scores[1:] == pytest.approx(of_tokens(small_model, PROMPT), abs=TOLERANCE)


def test_a_run_learns_from_it_as_a_teacher(servers: Servers, small_model: Path, tmp_path: Path) -> None:
    """On-policy distillation from another model, with the policy on the embedded engine."""
    policy = create_tiny_model(tmp_path / "policy", seed=1)
    run = Launch(tmp_path / "run", policy)
    run.finish(
        "--max_steps",
        "2",
        "--orchestrator.train.algo.type",
        "opd",
        "--orchestrator.train.algo.teacher.name",
        str(small_model),
        "--orchestrator.train.algo.teacher.base_url",
        f"{servers.frozen}/v1",
    )
    for row in run.episodes(1):
        question, answer = row["traces"][0]["nodes"]
        token_ids = [*question["token_ids"], *answer["token_ids"]]
        expected = of_tokens(small_model, token_ids)[-len(answer["reference_logprobs"]) :]
        assert answer["reference_logprobs"] == pytest.approx(expected, abs=TOLERANCE)
    assert all(row["ref_kl"] > 0 and row["grad_norm"] > 0 for row in run.rows("trainer"))


async def test_it_tells_how_many_calls_wait(servers: Servers, small_model: Path) -> None:
    """Twenty calls, of which four run at a time and the rest wait. The queue is read while the server is paused,
    because on a busy machine it may not answer while it runs four calls. Then all calls are cancelled."""
    async with policy_pool(servers) as pool:
        calls = [
            asyncio.create_task(generate(pool, small_model, [65] * 20, max_tokens=2000, ignore_eos=True))
            for _ in range(20)
        ]
        async with asyncio.timeout(DEADLINE):
            while not await held_with_a_queue(pool, calls):
                await control(pool, "/resume")
                await asyncio.sleep(0.1)
        for call in calls:
            call.cancel()
        await control(pool, "/resume")
        async with asyncio.timeout(DEADLINE):
            while await engine_queue(pool) != 0:
                await asyncio.sleep(0.01)


async def held_with_a_queue(pool: Replicas, calls: list[asyncio.Task[bytes]]) -> bool:
    """Pause the server. Return True if calls are waiting and the server reports their number."""
    await control(pool, "/pause?mode=keep")
    waiting = sum(not call.done() for call in calls) - SLOTS
    return waiting > 0 and await engine_queue(pool) == waiting


async def test_a_policy_is_not_trained_on_a_server_without_the_routes(servers: Servers) -> None:
    pool = Replicas([servers.frozen], live=True)
    with pytest.raises(
        ReplicaError, match=r"vLLM .*0\.\d+.* without the route /weight_info.*VLLM_SERVER_DEV_MODE=1"
    ):
        await pool.connect(DEADLINE)
    await pool.close()


async def test_a_policy_is_not_served_without_its_key(servers: Servers) -> None:
    pool = Replicas([servers.policy], live=True)
    with pytest.raises(ReplicaError, match="answered 401"):
        await pool.connect(DEADLINE)
    await pool.close()
