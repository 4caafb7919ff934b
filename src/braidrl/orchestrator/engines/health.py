"""Health checks of replicas, periodic and after a broken connection, and the count of calls that wait for a place."""

import asyncio

import aiohttp

from braidrl.orchestrator.engines.pool import ReplicaError, Replicas
from braidrl.orchestrator.engines.replica import Replica


async def watch_health(pool: Replicas, period: float, timeout: float) -> None:
    """Find the replicas that died or hang, until cancelled. Each is asked every `period` seconds, and when it is
    suspected, and is lost where it does not answer well within `timeout` seconds.

    One of a frozen model takes requests again when it is well; one of the policy when it has been given its weights
    (`braidrl.orchestrator.engines.policy_watcher`).
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
