"""Connections to the inference servers of every model of the run."""

from contextlib import AsyncExitStack

from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.orchestrator.replicas import Replicas
from braidrl.utils.http import bearer, read_api_key


async def connect(config: OrchestratorConfig, version: int, stack: AsyncExitStack) -> dict[str, Replicas]:
    """The replicas of the policy and of every frozen model that a source samples from, by model name."""
    headers = bearer(policy_key(config))
    client = config.client
    most = config.gateway.max_inflight_per_replica
    policy = Replicas(
        client.base_url, live=True, headers=headers, address_file=client.address_file, max_inflight=most
    )
    pools = {config.model.path: policy}
    for source in config.train.source:
        frozen = source.algo.sampling.source
        if frozen == "policy":
            continue
        if frozen.name == config.model.path:
            raise ValueError(
                f"the frozen model of source {source.name!r} has the policy's name, {frozen.name!r}; serve "
                f"it under another"
            )
        if frozen.name in pools and pools[frozen.name].urls != frozen.base_url:
            raise ValueError(
                f"the frozen model of source {source.name!r}, {frozen.name!r}, stands at {frozen.base_url} here and at "
                f"{pools[frozen.name].urls} elsewhere; serve them under different names"
            )
        headers = bearer(read_api_key(frozen.api_key_var, f"the frozen model of source {source.name!r}"))
        pools[frozen.name] = Replicas(frozen.base_url, live=False, headers=headers, max_inflight=most)
    for pool in pools.values():
        stack.push_async_callback(pool.close)
        await pool.connect(config.client.startup_timeout, version)
    return pools


def policy_key(config: OrchestratorConfig) -> str | None:
    """The API key of the policy's servers, and of the gateway; None: no key."""
    return read_api_key(config.client.api_key_var, "orchestrator.client")
