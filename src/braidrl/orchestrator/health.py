"""Whether replicas are well: asked now and then, and at once where a connection broke."""

import asyncio

from braidrl.orchestrator.replicas import Replica, Replicas


async def watch_health(pool: Replicas, period: float, timeout: float) -> None:
    """Find the replicas that died or hang, until cancelled. Each is asked every `period` seconds, and when it is
    suspected, and is lost where it does not answer well within `timeout` seconds.

    One of a frozen model takes requests again when it is well; one of the policy when it has been given its weights
    (`braidrl.orchestrator.policy`).
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
