"""Weights of an inference server: updates of the embedded engine and vLLM, NCCL transfer to vLLM, sleep and wake-up."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from braidrl.configs.inference import BASE_SUFFIX, WORKER_EXTENSION
from braidrl.orchestrator.engines.client import RefusedError, Server, UnavailableError
from braidrl.transport.transfer import Join, Joined, Offer, Send, read_offer
from braidrl.transport.weights import base_of
from braidrl.utils.adapter import is_adapter
from braidrl.utils.http import bearer

WeightUpdate = Callable[[Server, Path, int], Awaitable[Any]]
"""Function `(server, folder, version)` that loads weights and returns the version that the server then reports.

An interrupted update may be repeated. Raises `UnavailableError` or `RefusedError`."""


async def update_embedded(server: Server, path: Path, version: int) -> Any:
    """Update the embedded engine. One call pauses its requests, loads the weights and resumes."""
    answer = await server.post("/update_weights", {"path": str(path), "version": version})
    try:
        return msgspec.json.decode(answer)["version"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return answer[:200].decode(errors="replace")


@dataclass
class VLLMUpdate:
    """Weight update of vLLM: pause, load in place, reset the prefix cache, set the version label, resume.

    Running requests recompute their cache with the new weights and continue.
    """

    loader: str = "reload_weights"
    """Worker method that loads a model from a folder."""
    joined: bool = False
    """True if its workers have joined the NCCL group of the trainer since they started."""

    async def __call__(self, server: Server, path: Path, version: int) -> Any:
        await server.post("/pause?mode=keep")
        self.joined = self.joined and await served_version(server) > 0  # v0 after a join: vLLM has restarted
        if is_adapter(path):
            await _load_adapter(server, path)
        elif (offer := read_offer(path)) is not None:
            await receive_weights(server, offer, version, fresh=not self.joined)
            self.joined = True
        elif (base := base_of(path)) is not None:
            raise RefusedError(
                f"the weights are a delta to {base.name}, but vLLM loads only whole models; remove "
                "trainer.weights.delta"
            )
        else:
            body = {"method": self.loader, "kwargs": {"weights_path": str(path)}}
            await server.post("/collective_rpc", body)
        reset = msgspec.json.decode(await server.post("/reset_prefix_cache?reset_running_requests=true"))
        if not reset["success"]:
            raise UnavailableError("the prefix cache is still in use")
        await server.post("/update_weight_version", {"new_version": str(version)})
        await server.post("/resume")
        return await served_version(server)


async def _load_adapter(server: Server, path: Path) -> None:
    """Load an adapter, replacing the previous one.

    The adapter is served under the policy's name, the base model under that name with `BASE_SUFFIX`. The first adapter
    is loaded with vLLM's route for adapters. Later ones use Braid's worker method `load_adapter`, which replaces the
    adapter once, also for running requests. vLLM's `load_inplace` would reload the folder in every forward, because it
    is a property of each request.
    """
    _, answer = await server.get("/v1/models")
    names = [card["id"] for card in msgspec.json.decode(answer)["data"]]
    name = names[0].removesuffix(BASE_SUFFIX)
    if name in names[1:]:
        await server.post("/collective_rpc", {"method": "load_adapter", "kwargs": {"lora_path": str(path)}})
    elif name != names[0]:
        await server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})
    else:
        raise RefusedError(
            f"vLLM serves the base model as {name!r}, but requests need that name for the adapter; start it with "
            f"braid inference and inference.vllm.lora_rank, or with --enable-lora, --served-model-name "
            f"{name}{BASE_SUFFIX}, --worker-extension-cls {WORKER_EXTENSION} and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
        )


async def served_version(server: Server) -> int:
    """Return the policy version that vLLM reports."""
    _, answer = await server.get("/weight_info")
    return version_of(msgspec.json.decode(answer)["weight_version"])


async def weight_update_of(server: Server) -> WeightUpdate:
    """Detect how a server loads weights. Raises `RefusedError` for a vLLM that lacks a required route or option."""
    status, _ = await server.get("/weight_info")
    if status == 200:
        return VLLMUpdate(await _loader_of(server))
    status, answer = await server.get("/version")
    if status != 200:
        return update_embedded
    raise RefusedError(
        f"vLLM {answer.decode(errors='replace')} without the route /weight_info cannot update weights while it runs; "
        "use 0.32 or later, started with --enable-scale-out and VLLM_SERVER_DEV_MODE=1 (braid inference does so)"
    )


async def _loader_of(server: Server) -> str:
    """Return the worker method that loads weights in place: Braid's own if the worker extension is installed."""
    status, answer = await server.get("/server_info?config_format=json")
    if status != 200:
        raise RefusedError(
            f"vLLM without the route /server_info (status {status}) is not supported; use 0.32 or later"
        )
    config = msgspec.json.decode(answer)["vllm_config"]
    if config["parallel_config"]["worker_extension_cls"] == WORKER_EXTENSION:
        return "load_policy"
    if config["device_config"]["device"] == "cpu":
        raise RefusedError(
            f"vLLM on a CPU without --worker-extension-cls {WORKER_EXTENSION} does not update an output layer that is "
            "tied to the embeddings; start it with braid inference, or with the options in docs/inference.md"
        )
    return "reload_weights"


async def receive_weights(server: Server, offer: Offer, version: int, *, fresh: bool) -> None:
    """Transfer an offered version from the memory of the trainer to the workers of a paused server.

    Args:
        fresh: True if the server has received no weights since it started.

    Raises:
        UnavailableError, RefusedError: a request to the server or the trainer failed.
    """
    trainer = replace(server, url=offer.url, headers=bearer(offer.token))
    _, answer = await server.get("/get_world_size")
    workers = msgspec.json.decode(answer)["world_size"]
    joined = await trainer.post("/join", Join(server.url, workers, fresh))
    if (init_info := msgspec.json.decode(joined, type=Joined).place) is not None:
        await server.post("/init_weight_transfer_engine", {"init_info": init_info})
    await server.post("/start_weight_update")
    try:
        async with asyncio.TaskGroup() as both:  # concurrently: both sides block in the NCCL broadcasts
            both.create_task(server.post("/update_weights", {"update_info": offer.update_info}))
            both.create_task(trainer.post("/send", Send(server.url, version)))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    await server.post("/finish_weight_update")


async def put_to_sleep(server: Server) -> None:
    """Free the device memory of weights and caches. Running requests are kept and recomputed after the wake-up.

    Sleep level 1 moves the weights to host memory. Raises `UnavailableError` or `RefusedError`.
    """
    try:
        await server.post("/sleep?level=1&mode=keep")
    except RefusedError as error:
        raise RefusedError(
            f"{error}; start vLLM with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1 (braid inference does so with "
            "share_device)"
        ) from error


async def wake_up(server: Server) -> None:
    """Reclaim the device memory; no effect on a server that is awake. Raises `UnavailableError` or `RefusedError`."""
    await server.post("/wake_up")


def version_of(label: str) -> int:
    """Return the policy version of a vLLM weight label. The label of the initial weights is not a number: v0."""
    return int(label) if label.isdecimal() else 0
