"""Launcher for Ray clusters. An actor on the chosen node runs each process as its child.

All nodes share the file system of the run folder and have the same Python environment. A placement group reserves the
resources of each process. All trainer ranks are in one group, so they are placed together or not at all. A process ends
with its actor, and an actor with its node. A lost server is placed again.
"""

import logging
import os
import socket
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.rl import RLConfig
from braidrl.launch.contract import Placement, Process, ProcessExit, Slot
from braidrl.launch.local import LocalLauncher
from braidrl.utils.process import handler_kept

try:
    import ray
    from ray.exceptions import RayActorError
    from ray.util import get_node_ip_address, placement_group, remove_placement_group
    from ray.util.placement_group import PlacementGroup
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    raise ConfigError(
        "launcher",
        f"the package ray cannot be imported ({error}), but launcher = 'ray' requires it; "
        "pip install 'braidrl[ray]'",
    ) from None

ACTOR_TIMEOUT = 60.0
"""Maximum time for a live actor to start or stop its process, in seconds."""
CONNECT_TIMEOUT = 10.0
"""Maximum time to connect to the head of the cluster, in seconds."""
LOST = -1
"""Exit code of a process whose actor was lost."""


class Runner:
    """Actor that runs one process on its node.

    Args:
        stop_timeout: seconds between SIGTERM and SIGKILL.
        folder: working directory of the launcher, to which relative paths in the config refer.
    """

    def __init__(self, stop_timeout: float, folder: Path) -> None:
        os.chdir(folder)
        self.launcher = LocalLauncher(stop_timeout, host=get_node_ip_address())

    def place(self, slot: Slot) -> Placement:
        """Return the address of this node and a free port. Ray itself sets the visible GPUs of the actor."""
        return self.launcher.place(replace(slot, devices=()))

    def start(self, process: Process) -> None:
        self.launcher.start(process)

    def poll(self, name: str) -> ProcessExit | None:
        return self.launcher.poll(name)

    def stop(self) -> None:
        self.launcher.stop()


@dataclass
class ActorHandle:
    """A `Runner` actor and its pending calls."""

    actor: Any
    place: Any
    """Ray reference to the result of `place`."""
    polled: Any = None
    """Ray reference to the result of the pending `poll`; None if no call is pending."""
    end: ProcessExit | None = None
    """Exit of its process."""

    @property
    def lost(self) -> bool:
        """True if the actor itself was lost."""
        return self.end is not None and self.end.code == LOST


class RayLauncher:
    """Launcher for the cluster of `[ray]`. Raises `ConfigError` if there is no cluster at `ray.address`."""

    moves = True

    def __init__(self, config: RLConfig, slots: list[Slot]) -> None:
        self.config = config.ray
        self.stop_timeout = config.stop_timeout
        self.placement_timeout = config.ray.placement_timeout
        self.env = {name: os.environ[name] for name in config.ray.env if name in os.environ}
        _connect(config)
        self.has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        self.groups = {name: self._reserve(name, members) for name, members in _groups(slots).items()}
        self.reserved = {name: group.ready() for name, group in self.groups.items()}
        """Ray references that become ready when a group has its nodes.

        Created once, because a new reference is never ready immediately and `_ready` does not wait.
        """
        self.handles: dict[str, ActorHandle] = {}
        self.last_loss = ""
        """Suffix of the error of `shortage`: reason why the last actor was lost during placement."""

    def place(self, slot: Slot) -> Placement | None:
        """Return the address on the node chosen by Ray, or None until it has chosen one."""
        if not self._ready(self.reserved[_group(slot)]):
            return None
        handle = self.handles.get(slot.name)
        if handle is None or handle.lost:
            handle = self._create_actor(slot)
        if not self._ready(handle.place):
            return None
        try:
            return ray.get(handle.place)
        except RayActorError as error:
            del self.handles[slot.name]
            self.last_loss = f"; an actor was lost: {error}"
            return None

    def start(self, process: Process) -> None:
        handle = self.handles[process.name]
        env = {**self.env, **process.env}
        if "LOCAL_RANK" in env and self.has_gpus:
            env["LOCAL_RANK"] = "0"  # Ray makes only its own GPU visible to a rank
        handle.end = handle.polled = None
        with _record_loss(handle):
            ray.get(handle.actor.start.remote(replace(process, env=env)), timeout=ACTOR_TIMEOUT)

    def poll(self, name: str) -> ProcessExit | None:
        """Return the result of the last completed `poll` of the actor and request the next, without waiting.

        The process of a lost actor counts as ended.
        """
        handle = self.handles[name]
        with _record_loss(handle):
            if handle.end is None and handle.polled is not None and self._ready(handle.polled):
                handle.end, handle.polled = ray.get(handle.polled), None
            if handle.end is None and handle.polled is None:
                handle.polled = handle.actor.poll.remote(name)
        return handle.end

    def stop(self) -> None:
        """Stop every process and release the placement groups."""
        if not ray.is_initialized():
            return
        stopped = [handle.actor.stop.remote() for handle in self.handles.values()]
        if stopped:
            ray.wait(stopped, num_returns=len(stopped), timeout=self.stop_timeout + ACTOR_TIMEOUT)
        for handle in self.handles.values():
            ray.kill(handle.actor)
        for group in self.groups.values():
            remove_placement_group(group)
        ray.shutdown()

    def shortage(self) -> str:
        free = {name: count for name, count in ray.available_resources().items() if name in ("CPU", "GPU")}
        return (
            f"the Ray cluster has {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs free; free resources, "
            "lower the request (threads, ray.cpus_per_process), or raise "
            f"ray.placement_timeout{self.last_loss}"
        )

    def _reserve(self, name: str, members: list[Slot]) -> PlacementGroup:
        """Create a placement group with one bundle per machine of the slots, each on a different node."""
        bundles: dict[int, dict[str, float]] = defaultdict(lambda: {"CPU": 0.0, "GPU": 0.0})
        for slot in members:
            bundles[slot.machine]["CPU"] += self._cpus(slot)
            bundles[slot.machine]["GPU"] += self._gpus(slot)
        requests = [{kind: count for kind, count in bundle.items() if count} for bundle in bundles.values()]
        strategy = "STRICT_SPREAD" if len(requests) > 1 else "STRICT_PACK"
        return placement_group(requests, strategy=strategy, name=name)

    def _create_actor(self, slot: Slot) -> ActorHandle:
        """Request an actor with the resources of the slot, without waiting for it to start."""
        strategy = PlacementGroupSchedulingStrategy(self.groups[_group(slot)])
        runner: Any = ray.remote(Runner)
        actor = runner.options(
            name=slot.name,
            num_cpus=self._cpus(slot),
            num_gpus=self._gpus(slot),
            scheduling_strategy=strategy,
        ).remote(self.stop_timeout, Path.cwd())
        self.handles[slot.name] = ActorHandle(actor, actor.place.remote(slot))
        return self.handles[slot.name]

    def _cpus(self, slot: Slot) -> int:
        return slot.threads or self.config.cpus_per_process

    def _gpus(self, slot: Slot) -> int:
        return slot.gpus if self.has_gpus else 0

    @staticmethod
    def _ready(reference: Any) -> bool:
        return bool(ray.wait([reference], timeout=0)[0])


@contextmanager
def _record_loss(handle: ActorHandle) -> Iterator[None]:
    """Record an actor error of the body as the exit of its process."""
    try:
        yield
    except RayActorError as error:
        handle.end = ProcessExit(LOST, f"was lost with its actor ({str(error).splitlines()[0]})")


def _connect(config: RLConfig) -> None:
    """Connect to the cluster, in a namespace for this run. Raises `ConfigError`."""
    try:
        if config.ray.address != "auto":  # fails early: `ray.init` retries for minutes
            host, _, port = config.ray.address.rpartition(":")
            socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
        with handler_kept():  # with Ray's SIGTERM handler, a terminated run would count as failed
            ray.init(
                address=config.ray.address,
                namespace=str(config.output_dir.absolute()),
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
    except OSError as error:
        raise ConfigError(
            "ray.address",
            f"found no Ray cluster at {config.ray.address!r} ({error}); start one with `ray start --head`",
        ) from None


def _groups(slots: list[Slot]) -> dict[str, list[Slot]]:
    groups: dict[str, list[Slot]] = defaultdict(list)
    for slot in slots:
        groups[_group(slot)].append(slot)
    return groups


def _group(slot: Slot) -> str:
    """Return the placement group of a slot: one for all trainer ranks, one for each other process."""
    return slot.kind if slot.kind == "trainer" else slot.name
