"""Assignment of cores, GPUs and ports to the processes of a run."""

from typing import Any

import pytest

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.core.inherit import inherit
from braidrl.configs.rl import RLConfig
from braidrl.launch import plan as module
from braidrl.launch.contract import Slot
from braidrl.launch.plan import Nodes, machines_of, plan, visible_devices

BASE = {
    "model": {"path": "model"},
    "orchestrator": {"train": {"source": [{"env": {"taskset": {"id": "reverse-text"}}}]}},
}
ONE = range(1)


def config_of(**settings: Any) -> RLConfig:
    return RLConfig.model_validate(inherit(BASE, settings))


def run_of(replicas: int, ranks: int, tensor: int = 1, **settings: Any) -> RLConfig:
    inference: dict[str, Any] = {"replicas": replicas}
    if tensor > 1:
        inference |= {"engine": "vllm", "vllm": {"tensor_parallel_size": tensor}}
    return config_of(inference=inference, trainer={"parallel": {"processes": ranks}}, **settings)


def devices(slots: list[Slot]) -> dict[str, tuple[int, tuple[int, ...]]]:
    return {slot.name: (slot.machine, slot.devices) for slot in slots}


def test_names_of_single_processes() -> None:
    slots = plan(run_of(1, 1), Nodes(ONE, ONE, cores=8, devices=0))
    assert [slot.name for slot in slots] == ["inference", "orchestrator", "trainer"]
    assert all(slot.devices == () for slot in slots)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"inference_0": 2, "inference_1": 2, "orchestrator": None, "trainer": 1}),
        # strictly on-policy: they take turns
        ({"max_off_policy_steps": 0}, {"inference_0": 4, "inference_1": 4, "trainer": 2}),
    ],
)
def test_cores_are_split_among_processes(settings: dict, expected: dict[str, int | None]) -> None:
    config = run_of(2, 4, orchestrator=settings)
    threads = {slot.name: slot.threads for slot in plan(config, Nodes(ONE, ONE, cores=8, devices=0))}
    assert expected.items() <= threads.items()


def test_configured_threads_take_precedence() -> None:
    config = config_of(inference={"threads": 3}, trainer={"threads": 5})
    threads = [slot.threads for slot in plan(config, Nodes(ONE, ONE, cores=1, devices=0))]
    assert threads == [3, None, 5]


def test_servers_and_ranks_on_one_machine_get_separate_gpus() -> None:
    slots = plan(run_of(2, 4, tensor=2), Nodes(ONE, ONE, cores=8, devices=8))
    assert devices(slots) == {
        "inference_0": (0, (0, 1)),
        "inference_1": (0, (2, 3)),
        "orchestrator": (0, ()),
        "trainer": (0, (4, 5, 6, 7)),
        "trainer_rank1": (0, (4, 5, 6, 7)),
        "trainer_rank2": (0, (4, 5, 6, 7)),
        "trainer_rank3": (0, (4, 5, 6, 7)),
    }
    assert [slot.local_rank for slot in slots[3:]] == [0, 1, 2, 3]


def test_the_only_gpu_is_shared() -> None:
    slots = plan(run_of(1, 1), Nodes(ONE, ONE, cores=8, devices=1))
    assert devices(slots)["inference"] == devices(slots)["trainer"] == (0, (0,))


def test_share_device_assigns_the_same_gpu() -> None:
    config = run_of(1, 1, share_device=True, orchestrator={"max_off_policy_steps": 0})
    slots = plan(config, Nodes(ONE, ONE, cores=8, devices=4))
    assert devices(slots)["inference"] == devices(slots)["trainer"] == (0, (0,))


def test_many_machines_are_filled_in_order() -> None:
    slots = plan(run_of(3, 2, tensor=2), Nodes(range(2), range(2, 4), cores=8, devices=4))
    assert devices(slots) == {
        "inference_0": (0, (0, 1)),
        "inference_1": (0, (2, 3)),
        "inference_2": (1, (0, 1)),
        "orchestrator": (0, ()),
        "trainer": (2, (0, 1)),
        "trainer_rank1": (2, (0, 1)),
        "trainer_rank2": (3, (0, 1)),
        "trainer_rank3": (3, (0, 1)),
    }
    assert [slot.index for slot in slots if slot.kind == "trainer"] == [0, 1, 2, 3]
    assert [slot.local_rank for slot in slots if slot.kind == "trainer"] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("config", "machines", "message"),
    [
        (
            run_of(3, 1, tensor=2),
            Nodes(ONE, ONE, 8, 4),
            r"inference.replicas: .*6 GPUs \(3 x 2 for inf.*has 4",
        ),
        (
            run_of(1, 4),
            Nodes(ONE, ONE, 8, 4),
            r"trainer.parallel.processes: .*5 GPUs \(1 for inf.*\+ 4 for tr",
        ),
        (run_of(1, 5), Nodes(ONE, range(1, 2), 8, 4), r"trainer.parallel.processes: .*5 GPUs"),
    ],
)
def test_too_few_gpus_are_an_error(config: RLConfig, machines: Nodes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(config, machines)


def test_ports_count_up_from_the_configured_one() -> None:
    machines = Nodes(ONE, ONE, cores=1, devices=0)
    assert [slot.port for slot in plan(run_of(2, 1), machines)] == [None] * 4
    config = config_of(inference={"replicas": 2, "port": 9000})
    assert [slot.port for slot in plan(config, machines)][:2] == [9000, 9001]


def test_machines_of_a_job() -> None:
    alone = machines_of(config_of(launcher="slurm", slurm={"gpus_per_node": 8, "cpus_per_task": 96}))
    assert alone == Nodes(ONE, ONE, cores=96, devices=8) and alone.together
    job = {"nodes": 5, "trainer_nodes": 2, "cpus_per_task": 4}
    several = machines_of(config_of(launcher="slurm", slurm=job))
    assert (several.serving, several.training, several.together) == (range(3), range(3, 5), False)


def test_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, expected in (("", ()), ("3", ("3",)), ("2, GPU-ab", ("2", "GPU-ab"))):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert visible_devices() == expected
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError))
    assert visible_devices() == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inference": {"replicas": 0}}, "base_url is not set; set it"),
        ({"inference": {"host": "0.0.0.0"}}, "reachable from other machines"),
        ({"slurm": {"nodes": 2, "trainer_nodes": 2}}, "leaves none of the 2 nodes to inference"),
        ({"share_device": True, "launcher": "ray"}, "requires a single machine, but launcher is 'ray'"),
        ({"launcher": "lsf"}, "'local', 'ray' or 'slurm'"),
    ],
)
def test_invalid_placements_are_rejected(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_of(**settings)
