"""Commands of the processes: addresses, rendezvous, API keys, and servers that move."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from braidrl.configs.core.load import load_config
from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.configs.rl import RLConfig
from braidrl.configs.trainer.config import TrainerConfig
from braidrl.launch.contract import Placement, Process, Slot
from braidrl.launch.local import LocalLauncher
from braidrl.launch.plan import Nodes, plan
from braidrl.launch.run import resolve, resolved_toml
from braidrl.launch.wiring import API_KEY, PlacementError, Wiring, place_all
from braidrl.utils.run_folder import RunFolder
from tests.support.fake_launcher import FakeLauncher
from tests.unit.launch.test_plan import ONE, config_of


class NamedNodes(FakeLauncher):
    """Launcher that places slots on named machines."""

    placement_timeout = 0.3

    def __init__(self, hosts: dict[str, str]) -> None:
        """`hosts`: machine of each slot. Slots without one are never placed."""
        super().__init__()
        self.hosts = hosts

    def place(self, slot: Slot) -> Placement | None:
        host = self.hosts.get(slot.name)
        return None if host is None else Placement(host, 7000 + slot.index)


HOSTS = {"inference_0": "a", "inference_1": "b", "orchestrator": "a", "trainer": "c", "trainer_rank1": "d"}


def wire(folder: Path, nodes: NamedNodes, step: int = 0, **settings: Any) -> Wiring:
    settings = {"inference": {"replicas": 2}, "trainer": {"parallel": {"processes": 2}}, **settings}
    config, run = config_of(output_dir=str(folder), **settings), RunFolder(folder)
    run.configs.mkdir(parents=True)
    slots = plan(config, Nodes(ONE, ONE, cores=4, devices=0))
    return Wiring(config, run, nodes, slots, step, verbose=False)


def by_name(wiring: Wiring) -> dict[str, Process]:
    return {process.name: process for process in wiring.processes()}


def orchestrator_of(folder: Path) -> OrchestratorConfig:
    return load_config(OrchestratorConfig, ["@", str(folder / "config" / "orchestrator.toml")])


def test_orchestrator_config_has_every_address(tmp_path: Path) -> None:
    wiring = wire(tmp_path, NamedNodes(HOSTS))
    client = orchestrator_of(tmp_path).client
    assert client.base_url == ["http://a:7000/v1", "http://b:7001/v1"]
    assert client.address_file == tmp_path / "config" / "addresses"
    trainer = load_config(TrainerConfig, ["@", str(tmp_path / "config" / "trainer.toml")])
    assert trainer.weights.transfer_host == "c"
    processes = by_name(wiring)
    assert processes["inference_1"].args[-4:] == ("--port", "7001", "--threads", "1")
    assert processes["inference_1"].health == Placement("b", 7001)
    assert {name: process.ends for name, process in processes.items()} == {
        "inference_0": False,
        "inference_1": False,
        "orchestrator": True,
        "trainer": True,
        "trainer_rank1": True,
    }


def test_rendezvous_is_at_the_first_rank(tmp_path: Path) -> None:
    processes = by_name(wire(tmp_path, NamedNodes(HOSTS), step=3))
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "c", "MASTER_PORT": "7000"}
    assert shared.items() | {("RANK", "0"), ("LOCAL_RANK", "0")} <= processes["trainer"].env.items()
    assert shared.items() | {("RANK", "1"), ("LOCAL_RANK", "1")} <= processes["trainer_rank1"].env.items()
    assert "WORLD_SIZE" not in processes["orchestrator"].env
    resumed = {name for name, process in processes.items() if "--resume-step" in process.args}
    assert resumed == {"orchestrator", "trainer", "trainer_rank1"}


def test_single_rank_has_no_rendezvous(tmp_path: Path) -> None:
    processes = by_name(wire(tmp_path, NamedNodes(HOSTS), trainer={}))
    assert "RANK" not in processes["trainer"].env


def test_moved_server_updates_the_address_file(tmp_path: Path) -> None:
    launcher = NamedNodes(dict(HOSTS))
    wiring = wire(tmp_path, launcher)
    gone = by_name(wiring)["inference_1"]
    del launcher.hosts["inference_1"]
    assert wiring.renew(gone) is None
    launcher.hosts["inference_1"] = "e"
    renewed = wiring.renew(gone)
    assert renewed is not None and renewed.health == Placement("e", 7001)
    assert (tmp_path / "config" / "addresses").read_text() == "http://a:7000/v1\nhttp://e:7001/v1"


def test_placement_timeout_names_the_shortage(tmp_path: Path) -> None:
    hosts = {name: host for name, host in HOSTS.items() if name != "trainer_rank1"}
    with pytest.raises(
        PlacementError, match=r"waited 0\.3 s for resources for trainer_rank1; there are no more machines"
    ):
        wire(tmp_path, NamedNodes(hosts))


def test_ports_of_one_machine_differ() -> None:
    slots = [Slot(f"inference_{index}", "inference", index) for index in range(20)]
    places = place_all(LocalLauncher(1.0), slots)
    assert len({place.port for place in places.values()}) == 20


def test_configured_addresses_are_kept(tmp_path: Path) -> None:
    url = "http://proxy:80/v1"
    wire(tmp_path, NamedNodes(HOSTS), orchestrator={"client": {"base_url": [url]}})
    client = orchestrator_of(tmp_path).client
    assert (client.base_url, client.address_file) == ([url], None)


def test_servers_on_several_machines_listen_on_all_interfaces_with_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY, "")
    config = resolve(config_of(launcher="ray"))
    assert (config.inference.host, config.inference.api_key_var) == ("0.0.0.0", API_KEY)
    assert config.orchestrator.client.api_key_var == API_KEY
    inference = {"replicas": 2, "host": "0.0.0.0", "api_key_var": API_KEY}
    processes = by_name(wire(tmp_path, NamedNodes(HOSTS), inference=inference))
    keys = {process.env[API_KEY] for process in processes.values()}
    assert len(keys) == 1 and len(keys.pop()) > 30


def test_saved_config_omits_chosen_addresses(tmp_path: Path) -> None:
    saved = tomllib.loads(resolved_toml(resolve(config_of())))
    assert "port" not in saved["inference"] and "base_url" not in saved["orchestrator"]["client"]
    again = RLConfig.model_validate(saved)
    assert resolved_toml(resolve(again)) == resolved_toml(again)
    fixed = tomllib.loads(resolved_toml(resolve(config_of(inference={"port": 9000}))))
    assert fixed["inference"]["port"] == 9000
