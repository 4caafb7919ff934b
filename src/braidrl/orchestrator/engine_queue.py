"""How many model calls wait for their turn: inside the inference servers, by their own account, and in the gateway."""

import aiohttp

from braidrl.orchestrator.replicas import Replica, ReplicaError, Replicas

WAITING = "braid_requests_waiting", "vllm:num_requests_waiting"
"""The gauges of `GET /metrics` that say so: the embedded engine's and vLLM's."""


async def engine_queue(pool: Replicas) -> int | None:
    """Calls that wait for a slot of the servers that take requests, and for room at one of them; None when no server
    says."""
    counts = [await _waiting(pool, replica) for replica in pool.all if replica.state == "open"]
    known = [count for count in counts if count is not None]
    return sum(known) + pool.admission.queued if known else None


async def _waiting(pool: Replicas, replica: Replica) -> int | None:
    try:
        text = (await pool.read(replica, "/metrics")).decode()
    except (aiohttp.ClientError, TimeoutError, ReplicaError):
        return None  # whether a server is up is for the calls themselves to find out
    counts = [gauge(text, name) for name in WAITING]
    return next((count for count in counts if count is not None), None)


def gauge(text: str, name: str) -> int | None:
    """The value of a gauge in Prometheus text, summed over its labels; None without one."""
    values = [
        float(line.rsplit(maxsplit=1)[1])
        for line in text.splitlines()
        if line.startswith((f"{name} ", f"{name}{{"))
    ]
    return int(sum(values)) if values else None
