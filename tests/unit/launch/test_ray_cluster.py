"""Errors of `launcher = "ray"` without a package or cluster, and its placement groups."""

import importlib
import socket
import sys
from pathlib import Path

import pytest

from braidrl.configs.core.errors import ConfigError
from braidrl.launch.plan import machines_of, plan
from braidrl.launch.run import open_launcher
from tests.unit.launch.test_plan import config_of, run_of

MODULE = "braidrl.launch.ray"


def test_missing_ray_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'braidrl\[ray\]'"):
        open_launcher(config_of(launcher="ray"), [])


def test_unreachable_head_raises_immediately(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        config = config_of(launcher="ray", ray={"address": address}, output_dir=str(tmp_path))
        with pytest.raises(ConfigError, match=f"no Ray cluster at '{address}'"):
            open_launcher(config, [])


def test_placement_groups() -> None:
    config = run_of(2, 2, launcher="ray", ray={"trainer_nodes": 2, "cpus_per_process": 3})
    slots = plan(config, machines_of(config))
    assert {slot.threads for slot in slots} == {3, None}
    groups = importlib.import_module(MODULE)._groups(slots)
    assert {name: [slot.name for slot in group] for name, group in groups.items()} == {
        "inference_0": ["inference_0"],
        "inference_1": ["inference_1"],
        "orchestrator": ["orchestrator"],
        "trainer": ["trainer", "trainer_rank1", "trainer_rank2", "trainer_rank3"],
    }
    assert [slot.machine for slot in groups["trainer"]] == [1, 1, 2, 2]
