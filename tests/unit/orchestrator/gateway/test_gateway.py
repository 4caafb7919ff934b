"""The gateway between environments and replicas."""

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from gateway_helpers import PROMPT, Setup, open_gateway

from braidrl.orchestrator.engines.pool import ReplicaError, Replicas
from braidrl.orchestrator.gateway.sessions import Spans
from tests.support.stub_engine import StubEngine


def spans_of(setup: Setup, trace_id: str) -> list[Spans]:
    session = setup.gateway.take_session(trace_id)
    assert session is not None
    return session.answered()


async def test_every_call_has_its_own_seed_and_a_run_repeats_them() -> None:
    seen = []
    for names in (("x", "y"), ("p", "q")):  # trace ids are random, their keys are not
        async with StubEngine() as engine, open_gateway(engine) as setup:
            for number, name in enumerate(names):
                setup.gateway.open_session(name, f"group/{number}", 1.0)
                for _ in range(2):
                    await setup.generate(name, seed=7)
            seen.append([request["sampling_params"]["seed"] for request in engine.requests])
    assert len(set(seen[0])) == 4
    assert seen[0] == seen[1]
    assert all(0 <= seed < 2**63 for seed in seen[0])


async def test_prefix_caches_are_salted_by_policy_version() -> None:
    async with StubEngine() as engine, open_gateway(engine) as setup:
        await setup.generate()
        await setup.replicas.update(setup.replicas.all[0], Path("weights"), 3, 5.0)
        await setup.generate()
    assert [request["cache_salt"] for request in engine.requests] == ["v0", "v3"]


async def test_numeric_token_ids_are_converted_for_renderers() -> None:
    async with StubEngine(numeric_ids=True) as engine, open_gateway(engine) as setup:
        setup.gateway.open_session("t", "key", 1.0)
        _, answer = await setup.generate("t")
    choice = answer["choices"][0]
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert entries[0]["top_logprobs"][0]["token"] == entries[0]["token"]


async def test_a_session_remembers_the_version_of_every_token_in_call_order() -> None:
    async with StubEngine(latency=0.2) as engine, open_gateway(engine) as setup:
        setup.gateway.open_session("t", "key", 1.0)
        call = asyncio.create_task(setup.generate("t"))
        await asyncio.sleep(0.1)
        await setup.replicas.update(setup.replicas.all[0], Path("weights"), 2, 5.0)
        await call
        await setup.generate("t")
        assert spans_of(setup, "t") == [[(0, 4), (2, 4)], [(2, 8)]]
        assert setup.gateway.take_session("t") is None


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"top_p": 0.9}, "top_p = 0.9"),
        ({"top_k": 50}, "top_k = 50"),
        ({"min_p": 0.1}, "min_p = 0.1"),
        ({"repetition_penalty": 1.1}, "repetition_penalty = 1.1"),
        ({"temperature": 0.7}, "temperature=0.7"),
    ],
)
async def test_training_refuses_sampling_that_the_trainer_cannot_replay(
    params: dict[str, Any], named: str
) -> None:
    async with StubEngine() as engine, open_gateway(engine) as setup:
        setup.gateway.open_session("train", "key", 1.0)
        setup.gateway.open_session("eval", "key", None)
        status, answer = await setup.generate("train", **params)
        assert status == 400
        assert named in answer["error"]["message"]
        assert (await setup.generate("eval", **params))[0] == 200
        assert (await setup.generate("train", top_p=1.0, top_k=-1, min_p=0.0))[0] == 200
        assert setup.gateway.take_traffic().refused == 1


async def test_answers_fit_the_context() -> None:
    async with StubEngine(length=12) as engine, open_gateway(engine, context=8) as setup:
        setup.gateway.open_session("t", "key", 1.0)
        status, answer = await setup.generate("t", max_tokens=16)
        assert (status, len(answer["choices"][0]["token_ids"])) == (200, 5)
        assert answer["choices"][0]["finish_reason"] == "length"
        body = {"model": "tiny", "token_ids": PROMPT * 3, "sampling_params": {}}
        status, answer = await setup.post("/inference/v1/generate", body, {})
        assert status == 400
        assert "maximum context length of 8 tokens" in answer["error"]["message"]
        assert len(engine.requests) == 1
        async with setup.http.get(f"{setup.gateway.url}/v1/models") as response:
            assert (await response.json())["data"][0]["max_model_len"] == 8


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"model": "other", "token_ids": [1]}, "unknown model 'other'"),
        ({"token_ids": [1]}, "no `model`"),
        ({"model": "tiny", "token_ids": "text"}, "expected shape"),
        ([1, 2], "expected shape"),
    ],
)
async def test_bad_requests_are_refused_with_the_reason(body: Any, named: str) -> None:
    async with StubEngine() as engine, open_gateway(engine) as setup:
        status, answer = await setup.post("/inference/v1/generate", body, {})
    assert status == 400
    assert named in answer["error"]["message"]


async def test_chat_completions_carry_seed_and_salt() -> None:
    async with StubEngine() as engine, open_gateway(engine) as setup:
        setup.gateway.open_session("t", "key", None)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "seed": 1}
        status, answer = await setup.post("/v1/chat/completions", body, {"X-Session-ID": "t"})
    assert status == 200
    assert answer["choices"][0]["message"]["content"] == f"seed {engine.requests[0]['seed']}"
    assert engine.requests[0]["seed"] != 1
    assert engine.requests[0]["cache_salt"] == "v0"


async def test_the_api_key_is_required_and_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with StubEngine(failures=[503]) as engine, open_gateway(engine, key="secret") as setup:
        assert (await setup.generate())[0] == 401
        assert (await setup.post("/inference/v1/generate", [], {"Authorization": "Bearer other"}))[0] == 401
        body = {"model": "tiny", "token_ids": PROMPT, "sampling_params": {"seed": 0}}
        status, _ = await setup.post("/inference/v1/generate", body, {"Authorization": "Bearer secret"})
    assert status == 200
    assert engine.headers[0]["Authorization"] == "Bearer secret"
    assert "secret" not in caplog.text


async def test_transient_errors_are_retried_with_the_same_seed() -> None:
    async with StubEngine(failures=[503, 502]) as engine, open_gateway(engine) as setup:
        setup.gateway.open_session("t", "key", 1.0)
        status, _ = await setup.generate("t")
    assert status == 200
    assert len({request["sampling_params"]["seed"] for request in engine.requests}) == 1
    assert len(engine.requests) == 3


async def test_permanent_errors_are_passed_on() -> None:
    async with StubEngine(failures=[500]) as engine, open_gateway(engine) as setup:
        assert (await setup.generate())[0] == 500
    assert len(engine.requests) == 1


async def test_the_deadline_error_contains_the_last_failure() -> None:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(StubEngine())
        setup = await stack.enter_async_context(open_gateway(engine, timeout=0.5))
        await engine.__aexit__()
        status, answer = await setup.generate()
        await engine.__aenter__()
    assert status == 504
    assert "no answer within 0.5 s" in answer["error"]["message"]
    assert engine.url.removesuffix("/v1") in answer["error"]["message"]


async def test_requests_wait_while_weights_change() -> None:
    async with StubEngine(update_seconds=0.3) as engine, open_gateway(engine) as setup:
        update = setup.replicas.update(setup.replicas.all[0], Path("weights"), 1, 5.0)
        updating = asyncio.create_task(update)
        await asyncio.sleep(0.1)
        call = asyncio.create_task(setup.generate())
        await asyncio.sleep(0.1)
        assert (setup.gateway.waiting, engine.requests) == (1, [])
        assert (await call)[1]["weight_versions"] == [[1, 8]]
        await updating


async def test_tokens_of_a_restarted_server_are_rejected() -> None:
    async with StubEngine() as engine, open_gateway(engine) as setup:
        replica = setup.replicas.all[0]
        await setup.replicas.update(replica, Path("weights"), 2, 5.0)
        engine.version = 0  # restarted between two health checks
        setup.gateway.open_session("t", "key", 1.0)
        call = asyncio.create_task(setup.generate("t"))
        while replica.state != "down":
            await asyncio.sleep(0.01)
        await setup.replicas.update(replica, Path("weights"), 2, 5.0)
        assert (await call)[0] == 200
        assert spans_of(setup, "t") == [[(2, 8)]]


async def test_an_abandoned_call_stops_its_generation() -> None:
    async with StubEngine(latency=30.0) as engine, open_gateway(engine) as setup:
        call = asyncio.create_task(setup.generate())
        while not engine.requests:
            await asyncio.sleep(0.01)
        call.cancel()
        async with asyncio.timeout(5.0):
            while not engine.cancelled:
                await asyncio.sleep(0.01)
        assert setup.gateway.in_flight == 0


async def test_sessions_spread_over_replicas_and_stay() -> None:
    async with (
        StubEngine(latency=0.1) as one,
        StubEngine(latency=0.1) as two,
        open_gateway(one, two) as setup,
    ):
        names = [f"trace{number}" for number in range(8)]
        for name in names:
            setup.gateway.open_session(name, name, 1.0)
        for _ in range(3):
            await asyncio.gather(*(setup.generate(name) for name in names))
        assert len(one.requests) == len(two.requests) == 12
        homes = {name: setup.gateway.sessions[name].replica for name in names}
        assert len(set(homes.values())) == 2


async def test_sessions_leave_a_replica_that_is_down() -> None:
    async with StubEngine() as one, StubEngine() as two, open_gateway(one, two) as setup:
        setup.gateway.open_session("t", "key", 1.0)
        await setup.generate("t")
        home = setup.gateway.sessions["t"].replica
        dead = one if home is setup.replicas.all[0] else two
        await dead.__aexit__()
        assert (await setup.generate("t"))[0] == 200
        assert setup.gateway.sessions["t"].replica is not home
        await dead.__aenter__()


async def test_a_replica_that_never_answers_is_an_error() -> None:
    replicas = Replicas(["http://127.0.0.1:9/v1"], live=True)
    with pytest.raises(ReplicaError, match=r"http://127\.0\.0\.1:9 was not ready within 0\.3 s"):
        try:
            await replicas.connect(0.3)
        finally:
            await replicas.close()
