"""Processes on the nodes of a Ray cluster: each is the child of a small actor there.

Nodes share a file system, on which the run folder lies, and have this environment. A placement group reserves what a
process needs, and one group holds all trainer ranks, so that they are placed together or not at all. A process dies
with its actor, and an actor with its node; a server's place is then looked for again.
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
        "launcher", f"'ray' needs the package ray ({error}); install it: pip install 'braidrl[ray]'"
    ) from None

ANSWER_TIMEOUT = 60.0
"""Longest wait for an actor that is alive to start a process, in seconds."""
CONNECT_TIMEOUT = 10.0
"""Longest wait for the head of the cluster, in seconds."""
LOST = -1
"""Exit code of a process that was lost with its actor."""


class Runner:
    """The actor of one process, on the process's node."""

    def __init__(self, stop_timeout: float, folder: Path) -> None:
        """`folder` is the launcher's working directory, from which paths of the config are meant."""
        os.chdir(folder)
        self.launcher = LocalLauncher(stop_timeout, host=get_node_ip_address())

    def place(self, slot: Slot) -> Placement:
        """The address of this node, and a port that is free here. Ray says which GPUs the actor has."""
        return self.launcher.place(replace(slot, devices=()))

    def start(self, process: Process) -> None:
        self.launcher.start(process)

    def poll(self, name: str) -> ProcessExit | None:
        return self.launcher.poll(name)

    def stop(self) -> None:
        self.launcher.stop()


@dataclass
class ActorHandle:
    """A runner, and what it was asked last."""

    actor: Any
    place: Any
    """Reference to its answer to `place`."""
    polled: Any = None
    """Reference to its answer to `poll`; None: it was not asked."""
    end: ProcessExit | None = None
    """How its process ended."""

    @property
    def lost(self) -> bool:
        """Whether it is gone itself."""
        return self.end is not None and self.end.code == LOST


class RayLauncher:
    """The cluster of `[ray]`. Raises `ConfigError` where there is none."""

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
        """References that Ray answers once a group has its nodes; asked for once: a new one is never ready at once."""
        self.hired: dict[str, ActorHandle] = {}
        self.trouble = ""
        """Why the last actor was lost while it was placed."""

    def place(self, slot: Slot) -> Placement | None:
        """The node that Ray chooses, once it has."""
        if not self._ready(self.reserved[_group(slot)]):
            return None
        hired = self.hired.get(slot.name)
        if hired is None or hired.lost:
            hired = self._hire(slot)
        if not self._ready(hired.place):
            return None
        try:
            return ray.get(hired.place)
        except RayActorError as error:
            del self.hired[slot.name]
            self.trouble = f"; an actor was lost: {error}"
            return None

    def start(self, process: Process) -> None:
        hired = self.hired[process.name]
        env = {**self.env, **process.env}
        if "LOCAL_RANK" in env and self.has_gpus:
            env["LOCAL_RANK"] = "0"  # a rank sees its own GPU alone
        hired.end = hired.polled = None
        with _lost(hired):
            ray.get(hired.actor.start.remote(replace(process, env=env)), timeout=ANSWER_TIMEOUT)

    def poll(self, name: str) -> ProcessExit | None:
        """As of the actor's last answer. One that is lost has taken its process with it."""
        hired = self.hired[name]
        with _lost(hired):
            if hired.end is None and hired.polled is not None and self._ready(hired.polled):
                hired.end, hired.polled = ray.get(hired.polled), None
            if hired.end is None and hired.polled is None:
                hired.polled = hired.actor.poll.remote(name)
        return hired.end

    def stop(self) -> None:
        """Stop every process and give back what was reserved."""
        if not ray.is_initialized():
            return
        stopped = [hired.actor.stop.remote() for hired in self.hired.values()]
        if stopped:
            ray.wait(stopped, num_returns=len(stopped), timeout=self.stop_timeout + ANSWER_TIMEOUT)
        for hired in self.hired.values():
            ray.kill(hired.actor)
        for group in self.groups.values():
            remove_placement_group(group)
        ray.shutdown()

    def shortage(self) -> str:
        free = {name: count for name, count in ray.available_resources().items() if name in ("CPU", "GPU")}
        return (
            f"free in the Ray cluster: {free.get('CPU', 0):g} CPUs, {free.get('GPU', 0):g} GPUs; make room, lower what "
            f"they need (threads, ray.cpus_per_process), or raise ray.placement_timeout{self.trouble}"
        )

    def _reserve(self, name: str, members: list[Slot]) -> PlacementGroup:
        """One bundle for each machine that the slots are meant for; the machines must differ."""
        bundles: dict[int, dict[str, float]] = defaultdict(lambda: {"CPU": 0.0, "GPU": 0.0})
        for slot in members:
            bundles[slot.machine]["CPU"] += self._cpus(slot)
            bundles[slot.machine]["GPU"] += self._gpus(slot)
        wanted = [{kind: count for kind, count in bundle.items() if count} for bundle in bundles.values()]
        strategy = "STRICT_SPREAD" if len(wanted) > 1 else "STRICT_PACK"
        return placement_group(wanted, strategy=strategy, name=name)

    def _hire(self, slot: Slot) -> ActorHandle:
        """Ask for an actor with what the slot needs; it comes when Ray has started it."""
        strategy = PlacementGroupSchedulingStrategy(self.groups[_group(slot)])
        runner: Any = ray.remote(Runner)
        actor = runner.options(
            name=slot.name,
            num_cpus=self._cpus(slot),
            num_gpus=self._gpus(slot),
            scheduling_strategy=strategy,
        ).remote(self.stop_timeout, Path.cwd())
        self.hired[slot.name] = ActorHandle(actor, actor.place.remote(slot))
        return self.hired[slot.name]

    def _cpus(self, slot: Slot) -> int:
        return slot.threads or self.config.cpus_per_process

    def _gpus(self, slot: Slot) -> int:
        return slot.gpus if self.has_gpus else 0

    @staticmethod
    def _ready(reference: Any) -> bool:
        return bool(ray.wait([reference], timeout=0)[0])


@contextmanager
def _lost(hired: ActorHandle) -> Iterator[None]:
    """What is asked of an actor that is gone is answered by its end."""
    try:
        yield
    except RayActorError as error:
        hired.end = ProcessExit(LOST, f"was lost with its actor ({str(error).splitlines()[0]})")


def _connect(config: RLConfig) -> None:
    """Join the cluster, in a namespace of the run."""
    try:
        if config.ray.address != "auto":  # or Ray would try for minutes
            host, _, port = config.ray.address.rpartition(":")
            socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
        with handler_kept():  # with Ray's, SIGTERM would be a failure of the run
            ray.init(
                address=config.ray.address,
                namespace=str(config.output_dir.absolute()),
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
    except OSError as error:
        raise ConfigError(
            "ray.address",
            f"there is no Ray cluster at {config.ray.address!r} ({error}); start one (ray start --head)",
        ) from None


def _groups(slots: list[Slot]) -> dict[str, list[Slot]]:
    groups: dict[str, list[Slot]] = defaultdict(list)
    for slot in slots:
        groups[_group(slot)].append(slot)
    return groups


def _group(slot: Slot) -> str:
    """Name of those that are placed together: all ranks, and every other process by itself."""
    return slot.kind if slot.kind == "trainer" else slot.name
