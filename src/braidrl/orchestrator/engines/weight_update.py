"""Weights of an inference server: updates of the embedded engine and of vLLM, vLLM's weight transfer from the memory of
the trainer, sleep and wake-up."""

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
"""Gives a server the weights in a folder as a version, and returns the version that it then says to serve. It may be
called again where it was cut off. Raises `UnavailableError` and `RefusedError`."""


async def update_embedded(server: Server, path: Path, version: int) -> Any:
    """The embedded engine holds its requests, loads, and goes on, in one call."""
    answer = await server.post("/update_weights", {"path": str(path), "version": version})
    try:
        return msgspec.json.decode(answer)["version"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return answer[:200].decode(errors="replace")


@dataclass
class VLLMUpdate:
    """vLLM: hold its requests, load in place, forget what the old weights have cached (requests under way compute
    theirs anew), label what is sampled from now on, go on."""

    loader: str = "reload_weights"
    """The method of its workers that loads a model from a folder."""
    joined: bool = False
    """Whether its workers have met the trainer since they started."""

    async def __call__(self, server: Server, path: Path, version: int) -> Any:
        await server.post("/pause?mode=keep")
        self.joined = self.joined and await served_version(server) > 0  # else it was started anew
        if is_adapter(path):
            await _load_adapter(server, path)
        elif (offer := read_offer(path)) is not None:
            await receive_weights(server, offer, version, fresh=not self.joined)
            self.joined = True
        elif (base := base_of(path)) is not None:
            raise RefusedError(
                f"it is a delta to {base.name}, and vLLM loads whole ones; remove trainer.weights.delta"
            )
        else:
            body = {"method": self.loader, "kwargs": {"weights_path": str(path)}}
            await server.post("/collective_rpc", body)
        reset = msgspec.json.decode(await server.post("/reset_prefix_cache?reset_running_requests=true"))
        if not reset["success"]:
            raise UnavailableError("the prefix cache is still held")
        await server.post("/update_weight_version", {"new_version": str(version)})
        await server.post("/resume")
        return await served_version(server)


async def _load_adapter(server: Server, path: Path) -> None:
    """Put the adapter in the place of the one before it. It is served under the policy's name, and the model without it
    under another (`BASE_SUFFIX`).

    The first goes through the route for adapters. Its own way to replace one, `load_inplace`, stays with every request
    and loads that request's folder again in each forward; Braid's worker replaces it once, for those under way as well.
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
            f"it serves the model itself as {name!r}, the name that requests use, and so no adapter under it; start it "
            f"with braid inference and inference.vllm.lora_rank, or with --enable-lora, --served-model-name "
            f"{name}{BASE_SUFFIX}, --worker-extension-cls {WORKER_EXTENSION} and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
        )


async def served_version(server: Server) -> int:
    """The version that vLLM says to serve."""
    _, answer = await server.get("/weight_info")
    return version_of(msgspec.json.decode(answer)["weight_version"])


async def weight_update_of(server: Server) -> WeightUpdate:
    """How this server takes weights. Raises `RefusedError` for a vLLM that cannot, with what is missing."""
    status, _ = await server.get("/weight_info")
    if status == 200:
        return VLLMUpdate(await _loader_of(server))
    status, answer = await server.get("/version")
    if status != 200:
        return update_embedded
    raise RefusedError(
        f"it is vLLM {answer.decode(errors='replace')} without the route /weight_info, so it cannot take weights under "
        "way; use 0.32 or later, started with --enable-scale-out and VLLM_SERVER_DEV_MODE=1 (braid inference does so)"
    )


async def _loader_of(server: Server) -> str:
    """The method of vLLM's workers that loads weights in place: Braid's own where they have it."""
    status, answer = await server.get("/server_info?config_format=json")
    if status != 200:
        raise RefusedError(
            f"it is a vLLM without the route /server_info (status {status}); use 0.32 or later"
        )
    config = msgspec.json.decode(answer)["vllm_config"]
    if config["parallel_config"]["worker_extension_cls"] == WORKER_EXTENSION:
        return "load_policy"
    if config["device_config"]["device"] == "cpu":
        raise RefusedError(
            f"it is vLLM on a CPU without --worker-extension-cls {WORKER_EXTENSION}, and would go on with the old "
            "weights of an output layer that is tied with the embeddings; start it with braid inference, or as "
            "docs/inference.md says"
        )
    return "reload_weights"


async def receive_weights(server: Server, offer: Offer, version: int, *, fresh: bool) -> None:
    """Let the workers of a paused server load an offered version in place.

    `fresh`: whether the server has taken no weights since it started. Raises `UnavailableError` and `RefusedError`.
    """
    trainer = replace(server, url=offer.url, headers=bearer(offer.token))
    _, answer = await server.get("/get_world_size")
    workers = msgspec.json.decode(answer)["world_size"]
    joined = await trainer.post("/join", Join(server.url, workers, fresh))
    if (place := msgspec.json.decode(joined, type=Joined).place) is not None:
        await server.post("/init_weight_transfer_engine", {"init_info": place})
    await server.post("/start_weight_update")
    try:
        async with asyncio.TaskGroup() as both:  # they meet in the broadcasts
            both.create_task(server.post("/update_weights", {"update_info": offer.update_info}))
            both.create_task(trainer.post("/send", Send(server.url, version)))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    await server.post("/finish_weight_update")


async def put_to_sleep(server: Server) -> None:
    """Free the memory of weights and caches; requests under way are kept, and computed anew later.

    Level 1: the weights wait in the memory of the host. Raises `UnavailableError` and `RefusedError`.
    """
    try:
        await server.post("/sleep?level=1&mode=keep")
    except RefusedError as error:
        raise RefusedError(
            f"{error}; start vLLM with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1 (braid inference does so with "
            "share_device)"
        ) from error


async def wake_up(server: Server) -> None:
    """Take the device again; nothing where it is awake. Raises `UnavailableError` and `RefusedError`."""
    await server.post("/wake_up")


def version_of(label: str) -> int:
    """The policy version of weights that vLLM labels so; those that it started with are v0."""
    return int(label) if label.isdecimal() else 0
