"""How an inference server takes new weights: Braid's own in one call, stock vLLM in the calls that it has for it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from braidrl.configs.inference import BASE_SUFFIX, WORKER_EXTENSION
from braidrl.orchestrator.requests import version_of
from braidrl.utils.adapter import is_adapter
from braidrl.utils.retry import RETRIED, Backoff, describe


class UnavailableError(RuntimeError):
    """A server that is busy, starting or away: to be asked again."""


class RefusedError(RuntimeError):
    """A server that will not do what it was asked."""


@dataclass
class Server:
    """Calls to one inference server, until a deadline."""

    http: aiohttp.ClientSession
    url: str
    backoff: Backoff

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body. Raises `UnavailableError`."""
        return await self._call("GET", path)

    async def post(self, path: str, body: Any = None) -> bytes:
        """The body of an answer of status 200. Raises `UnavailableError` and `RefusedError`."""
        status, answer = await self._call("POST", path, b"" if body is None else msgspec.json.encode(body))
        if status != 200:
            raise RefusedError(f"{path} answered {status}: {answer[:500].decode(errors='replace')}")
        return answer

    async def _call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        limit = aiohttp.ClientTimeout(total=max(0.1, self.backoff.remaining))
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            async with self.http.request(
                method, self.url + path, data=body, headers=headers, timeout=limit
            ) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnavailableError(describe(error)) from error
        if response.status in RETRIED:
            raise UnavailableError(f"status {response.status}: {answer[:500].decode(errors='replace')}")
        return response.status, answer


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


async def update_vllm(server: Server, path: Path, version: int, *, loader: str = "reload_weights") -> Any:
    """vLLM: hold its requests, load in place, forget what the old weights have cached (requests under way compute
    theirs anew), label what is sampled from now on, go on. `loader` is the method of its workers that loads a model."""
    await server.post("/pause?mode=keep")
    if is_adapter(path):
        await _load_adapter(server, path)
    else:
        await server.post("/collective_rpc", {"method": loader, "kwargs": {"weights_path": str(path)}})
    reset = msgspec.json.decode(await server.post("/reset_prefix_cache?reset_running_requests=true"))
    if not reset["success"]:
        raise UnavailableError("the prefix cache is still held")
    await server.post("/update_weight_version", {"new_version": str(version)})
    await server.post("/resume")
    return await served_version(server)


async def _load_adapter(server: Server, path: Path) -> None:
    """Put the adapter in the place of the one before it, so that requests under way go on with the new one. It is
    served under the policy's name, and the model without it under another (`BASE_SUFFIX`)."""
    _, answer = await server.get("/v1/models")
    base = msgspec.json.decode(answer)["data"][0]["id"]
    if not base.endswith(BASE_SUFFIX):
        raise RefusedError(
            f"it serves the model itself as {base!r}, the name that requests use, and so no adapter under it; start it "
            f"with --enable-lora, --served-model-name {base}{BASE_SUFFIX} and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 "
            "(braid inference does so with inference.vllm.lora_rank)"
        )
    body = {"lora_name": base.removesuffix(BASE_SUFFIX), "lora_path": str(path), "load_inplace": True}
    await server.post("/v1/load_lora_adapter", body)


async def served_version(server: Server) -> int:
    """The version that vLLM says to serve."""
    _, answer = await server.get("/weight_info")
    return version_of(msgspec.json.decode(answer)["weight_version"])


async def weight_update_of(server: Server) -> WeightUpdate:
    """How this server takes weights. Raises `RefusedError` for a vLLM that cannot, with what is missing."""
    status, _ = await server.get("/weight_info")
    if status == 200:
        return partial(update_vllm, loader=await _loader_of(server))
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
