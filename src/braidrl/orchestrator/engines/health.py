"""Health checks of replicas, and the number of requests that wait in the engines."""

import asyncio

import aiohttp

from braidrl.orchestrator.engines.pool import ReplicaError, Replicas
from braidrl.orchestrator.engines.replica import Replica


async def watch_health(pool: Replicas, period: float, timeout: float) -> None:
    """Check the health of every replica until cancelled, to detect servers that died or hang.

    A check runs every `period` seconds, and at once after a connection broke. A replica is marked as lost if it does
    not report healthy within `timeout` seconds. A replica of a frozen model is reopened as soon as it is healthy. A
    replica of the policy is reopened by the policy watcher (`braidrl.orchestrator.engines.policy_watcher`), after it
    has received the current weights.
    """
    async with asyncio.TaskGroup() as group:
        for replica in pool.all:
            group.create_task(_watch(pool, replica, period, timeout))


async def _watch(pool: Replicas, replica: Replica, period: float, timeout: float) -> None:
    while True:
        try:
            async with asyncio.timeout(period):
                await replica.suspected.wait()
        except TimeoutError:
            pass
        replica.suspected.clear()
        if replica.state in ("open", "updating"):
            fault = await pool.fault(replica, timeout)
            if fault is not None:
                pool.lost(replica, fault)
        elif replica.state == "down" and not pool.live and await pool.fault(replica, timeout) is None:
            pool.set_state(replica, "open")


WAITING_GAUGES = "braid_requests_waiting", "vllm:num_requests_waiting"
"""Gauges of `GET /metrics` that count waiting requests, of the embedded engine and of vLLM."""


async def engine_queue(pool: Replicas) -> int | None:
    """Return the number of calls that wait in open servers or for a slot at one, or None if no server reports it."""
    counts = [await _waiting(pool, replica) for replica in pool.all if replica.state == "open"]
    reported = [count for count in counts if count is not None]
    return sum(reported) + pool.admission.queued if reported else None


async def _waiting(pool: Replicas, replica: Replica) -> int | None:
    try:
        text = (await pool.read(replica, "/metrics")).decode()
    except (aiohttp.ClientError, TimeoutError, ReplicaError):
        return None  # not a health check: `watch_health` detects a lost server
    counts = [gauge(text, name) for name in WAITING_GAUGES]
    return next((count for count in counts if count is not None), None)


def gauge(text: str, name: str) -> int | None:
    """Return the value of a gauge in Prometheus text, summed over its labels, or None if it is absent."""
    values = [
        float(line.rsplit(maxsplit=1)[1])
        for line in text.splitlines()
        if line.startswith((f"{name} ", f"{name}{{"))
    ]
    return int(sum(values)) if values else None
