"""Addresses and commands of the processes of a run."""

import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from braidrl.configs.core.load import to_toml
from braidrl.configs.rl import RLConfig
from braidrl.launch.contract import Launcher, Placement, Process, Slot
from braidrl.utils.process import environment
from braidrl.utils.publish import publish_bytes
from braidrl.utils.run_folder import RunFolder

POLL_SECONDS = 0.2
"""Polling interval in seconds."""
API_KEY = "BRAID_API_KEY"
"""Environment variable of the generated API key, which servers require if other machines can reach them."""


class PlacementError(RuntimeError):
    """The launcher has no resources for a process."""


def place_all(launcher: Launcher, slots: Iterable[Slot]) -> dict[str, Placement]:
    """Return the placement of every slot by name. Raises `PlacementError` after `launcher.placement_timeout`."""
    places: dict[str, Placement] = {}
    missing = list(slots)
    deadline = time.monotonic() + launcher.placement_timeout
    while True:
        places |= {slot.name: place for slot in missing if (place := launcher.place(slot)) is not None}
        missing = [slot for slot in missing if slot.name not in places]
        if not missing:
            return places
        if time.monotonic() > deadline:
            raise PlacementError(
                f"waited {launcher.placement_timeout:g} s for resources for "
                f"{', '.join(slot.name for slot in missing)}; {launcher.shortage()}"
            )
        time.sleep(POLL_SECONDS)


class Wiring:
    """Places all slots, writes the config files of the processes and builds their commands.

    Args:
        launcher: launcher that places the slots.
        step: step to continue after, 0 for a new run.
        verbose: write debug messages to the logs.

    Raises `PlacementError` if a slot cannot be placed.
    """

    def __init__(
        self,
        config: RLConfig,
        run: RunFolder,
        launcher: Launcher,
        slots: list[Slot],
        step: int,
        verbose: bool,
    ) -> None:
        self.config = config
        self.run = run
        self.launcher = launcher
        self.slots = {slot.name: slot for slot in slots}
        self.step = step
        self.verbose = verbose
        self.places = place_all(launcher, slots)
        if config.inference.api_key_var == API_KEY and not os.environ.get(API_KEY):
            os.environ[API_KEY] = secrets.token_urlsafe(32)
        self._write_configs()

    def processes(self) -> list[Process]:
        """Return all processes in start order. Each waits for the others itself, so all can start at once."""
        return [self._process(slot) for slot in self.slots.values()]

    def renew(self, process: Process) -> Process | None:
        """Return the replacement of a server that ended, or None while it cannot be placed.

        If its address changed, the address file is updated, which the orchestrator reads.
        """
        slot = self.slots[process.name]
        place = self.launcher.place(slot)
        if place is None:
            return None
        if place != self.places[slot.name]:
            self.places[slot.name] = place
            publish_bytes(self._address_file, "\n".join(self._base_urls()).encode())
        return self._process(slot)

    def _write_configs(self) -> None:
        """Write one config file per kind of process."""
        trainer = self.config.trainer.model_copy(deep=True)
        if "transfer_host" not in trainer.weights.model_fields_set:
            trainer.weights.transfer_host = self.places["trainer"].host
        orchestrator = self.config.orchestrator.model_copy(deep=True)
        client = orchestrator.client
        if "base_url" not in client.model_fields_set:
            client.base_url = self._base_urls()
            if self.launcher.moves:
                self._address_file.unlink(missing_ok=True)
                client.address_file = self._address_file.absolute()
        parts: dict[str, BaseModel] = {
            "trainer": trainer,
            "orchestrator": orchestrator,
            "inference": self.config.inference,
        }
        for kind, part in parts.items():
            self._file(kind).write_text(to_toml(part))

    def _process(self, slot: Slot) -> Process:
        args = [slot.kind, "@", str(self._file(slot.kind))]
        if slot.kind == "inference":
            args += ["--port", str(self.places[slot.name].port)]
        if slot.threads is not None:
            args += ["--threads", str(slot.threads)]
        if self.step and slot.kind != "inference":
            args += ["--resume-step", str(self.step)]
        if self.verbose:
            args.append("--verbose")
        serves = slot.kind == "inference"
        return Process(
            slot.name,
            tuple(args),
            self.run.log(slot.name),
            environment(slot.threads) | self._rendezvous(slot) | self._keys(),
            ends=not serves,
            health=self.places[slot.name] if serves else None,
            max_restarts=self.config.inference.max_restarts if serves else 0,
        )

    def _rendezvous(self, slot: Slot) -> dict[str, str]:
        """Return the `torch.distributed` variables of a trainer rank. Empty if it is the only rank."""
        ranks = [other for other in self.slots.values() if other.kind == "trainer"]
        if slot.kind != "trainer" or len(ranks) == 1:
            return {}
        first = self.places[ranks[0].name]
        return {
            "RANK": str(slot.index),
            "LOCAL_RANK": str(slot.local_rank),
            "WORLD_SIZE": str(len(ranks)),
            "MASTER_ADDR": first.host,
            "MASTER_PORT": str(first.port),
        }

    def _keys(self) -> dict[str, str]:
        """Return the API key variable, which processes on other machines do not inherit."""
        name = self.config.inference.api_key_var
        return {name: os.environ[name]} if name is not None and name in os.environ else {}

    def _base_urls(self) -> list[str]:
        servers = [self.places[slot.name] for slot in self.slots.values() if slot.kind == "inference"]
        return [f"http://{place.host}:{place.port}/v1" for place in servers]

    @property
    def _address_file(self) -> Path:
        return self.run.configs / "addresses"

    def _file(self, kind: str) -> Path:
        return self.run.configs / f"{kind}.toml"
