"""Weight updates of vLLM: the order of requests, and the errors for missing routes."""

from pathlib import Path
from typing import Any

import pytest
from stub_vllm import DEADLINE, StubVLLM, pool_of

from braidrl.configs.inference import WORKER_EXTENSION
from braidrl.orchestrator.engines.pool import ReplicaError


def calls_of(path: Path, version: int, method: str) -> list[tuple[str, Any]]:
    return [
        ("/pause?mode=keep", None),
        ("/collective_rpc", {"method": method, "kwargs": {"weights_path": str(path)}}),
        ("/reset_prefix_cache?reset_running_requests=true", None),
        ("/update_weight_version", {"new_version": str(version)}),
        ("/resume", None),
    ]


@pytest.mark.parametrize(
    ("extension", "device", "method"),
    [
        (WORKER_EXTENSION, "cpu", "load_policy"),
        (WORKER_EXTENSION, "cuda", "load_policy"),
        ("", "cuda", "reload_weights"),
        ("somebody.Else", "cuda", "reload_weights"),
    ],
)
async def test_weights_change_while_requests_are_held_and_nothing_old_is_kept(
    tmp_path: Path, extension: str, device: str, method: str
) -> None:
    stub = StubVLLM(extension, device)
    async with pool_of(stub) as pool:
        for version in (1, 2):
            await pool.update(pool.all[0], tmp_path, version, DEADLINE)
            assert (pool.all[0].version, pool.all[0].state) == (version, "open")
    assert stub.calls == calls_of(tmp_path, 1, method) + calls_of(tmp_path, 2, method)


async def test_an_interrupted_update_is_repeated(tmp_path: Path) -> None:
    stub = StubVLLM(statuses={"/reset_prefix_cache": [503]})
    async with pool_of(stub) as pool:
        await pool.update(pool.all[0], tmp_path, 1, DEADLINE)
    assert stub.calls == calls_of(tmp_path, 1, "load_policy")[:3] + calls_of(tmp_path, 1, "load_policy")


async def test_weights_that_it_cannot_load_end_the_run(tmp_path: Path) -> None:
    stub = StubVLLM(statuses={"/collective_rpc": [500]})
    async with pool_of(stub) as pool:
        with pytest.raises(ReplicaError, match=r"weights of v1 .*/collective_rpc answered 500: .*told to"):
            await pool.update(pool.all[0], tmp_path, 1, DEADLINE)


async def test_another_version_than_the_one_sent_ends_the_run(tmp_path: Path) -> None:
    async with pool_of(StubVLLM(acknowledges=False)) as pool:
        with pytest.raises(ReplicaError, match="acknowledged 0, but v1 was sent"):
            await pool.update(pool.all[0], tmp_path, 1, DEADLINE)


@pytest.mark.parametrize(
    ("stub", "message"),
    [
        (
            StubVLLM(missing={"/weight_info"}),
            r"vLLM .*0\.25\.0.* without the route /weight_info.* use 0\.32 or later",
        ),
        (
            StubVLLM(missing={"/server_info"}),
            r"without the route /server_info \(status 404\).* use 0\.32 or later",
        ),
        (StubVLLM(extension=""), r"on a CPU without --worker-extension-cls braid_vllm\.PolicyWorker"),
    ],
)
async def test_a_server_that_cannot_take_weights_is_refused_at_the_start(
    stub: StubVLLM, message: str
) -> None:
    with pytest.raises(ReplicaError, match=message):
        async with pool_of(stub):
            pass
