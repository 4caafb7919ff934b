"""One device shared by trainer and inference (`share_device`)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from server_helpers import generate, metric, post, running, wait_for_metric
from stub_vllm import StubVLLM, pool_of

from braidrl.configs.inference import InferenceConfig
from braidrl.configs.rl import RLConfig
from braidrl.inference.engines.vllm import arguments
from braidrl.orchestrator.engines.policy_watcher import PolicyWatcher
from braidrl.orchestrator.engines.pool import ReplicaError, Replicas
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.step import Learner
from braidrl.utils.run_folder import RunFolder
from braidrl.utils.tiny_model import create_tiny_model
from tests.support.stub_engine import StubEngine
from tests.support.stub_trainer import run_stub

DEADLINE = 20.0


def config_of(**settings: Any) -> RLConfig:
    source = {"env": {"taskset": {"id": "reverse-text"}}}
    orchestrator = {"train": {"source": [source]}, **settings.pop("orchestrator", {})}
    return RLConfig.model_validate({"model": {"path": "m"}, "orchestrator": orchestrator, **settings})


def test_share_device_makes_a_run_strictly_on_policy_in_all_processes() -> None:
    config = config_of(share_device=True)
    assert config.orchestrator.max_off_policy_steps == 0
    assert config.trainer.share_device and config.orchestrator.share_device and config.inference.share_device
    assert config_of().orchestrator.max_off_policy_steps == 1
    again = RLConfig.model_validate(config.model_dump())
    assert again.orchestrator.share_device and again.orchestrator.max_off_policy_steps == 0


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"orchestrator": {"max_off_policy_steps": 2}}, "max_off_policy_steps is 2, but .*share_device"),
        ({"orchestrator": {"oversampling_factor": 1.5}}, "oversampling_factor is 1.5"),
        ({"trainer": {"parallel": {"processes": 2}}}, "parallel.processes is 2, but share_device"),
        ({"trainer": {"weights": {"transfer": "nccl"}}}, 'weights.transfer is "nccl", which'),
        ({"trainer": {"share_device": False}}, r"trainer\.share_device .*set it .*at the root"),
    ],
)
def test_settings_that_conflict_with_share_device_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        config_of(share_device=True, **settings)


def test_vllm_is_started_so_that_it_can_sleep() -> None:
    for shares in (False, True):
        config = InferenceConfig.model_validate({"model": {"path": "m"}, "share_device": shares})
        assert ("--enable-sleep-mode" in arguments(config)) is shares


async def test_a_sleeping_engine_frees_its_cache_and_resumes_requests(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Sleep frees the KV cache. Running requests finish with the same tokens as without it."""
    weights = create_tiny_model(tmp_path / "v1", seed=1)
    async with running(tiny_model_dir) as session:
        undisturbed = await generate(session, [7] * 20, max_tokens=300, seed=3)
        under_way = asyncio.create_task(generate(session, [7] * 20, max_tokens=300, seed=3))
        await wait_for_metric(session, "requests_running", 1)
        assert await metric(session, "cache_bytes") > 0
        assert await post(session, "/sleep?level=1&mode=keep") == (200, {"status": "sleeping"})
        assert await metric(session, "cache_bytes") == 0
        generated = await metric(session, "generated_tokens_total")
        later = asyncio.create_task(generate(session, [8], max_tokens=2))
        await wait_for_metric(session, "requests_waiting", 1)
        async with session.get("/is_sleeping") as response:
            assert await response.json() == {"is_sleeping": True}
        assert await metric(session, "generated_tokens_total") == generated < 600
        assert await post(session, "/wake_up") == (200, {"status": "awake"})
        assert (await under_way)["choices"] == undisturbed["choices"]
        await later
        await post(session, "/sleep")
        body = {"path": str(weights), "version": 1}
        assert await post(session, "/update_weights", body) == (200, {"version": 1})
        assert await metric(session, "cache_bytes") == 0  # asleep until it is woken
        await post(session, "/wake_up")
        assert (await generate(session, [8], max_tokens=2))["weight_versions"] == [[1, 2]]


async def test_vllm_sleeps_and_is_woken_before_it_takes_weights(tmp_path: Path) -> None:
    stub = StubVLLM()
    async with pool_of(stub) as pool:
        (replica,) = pool.all
        await pool.sleep(replica, DEADLINE)
        assert replica.state == "asleep"
        await pool.update(replica, tmp_path, 1, DEADLINE)
        await pool.update(replica, tmp_path, 2, DEADLINE)
    update = ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]
    called = [path.split("?")[0] for path, _ in stub.calls]
    assert called == ["/sleep", "/wake_up", *update, *update]
    assert stub.calls[0][0] == "/sleep?level=1&mode=keep"


async def test_a_server_that_cannot_sleep_is_an_error_with_the_missing_flag() -> None:
    async with pool_of(StubVLLM(missing={"/sleep"})) as pool:
        with pytest.raises(ReplicaError, match=r"refused to go to sleep .*--enable-sleep-mode"):
            await pool.sleep(pool.all[0], DEADLINE)


async def test_sleep_has_a_deadline() -> None:
    async with StubEngine() as engine:
        pool = Replicas([engine.url], live=True)
        await pool.connect(DEADLINE)
        await engine.__aexit__()
        with pytest.raises(ReplicaError, match=r"did not go to sleep \(share_device\) within 0\.3 s"):
            await pool.sleep(pool.all[0], 0.3)
        await engine.__aenter__()
        await pool.close()


async def test_the_engine_sleeps_while_each_batch_is_trained(tiny_model_dir: Path, tmp_path: Path) -> None:
    """The engine gets no request between the end of a batch and the resulting weights."""
    batches, engine = await run_stub(tiny_model_dir, tmp_path, share_device=True, max_steps=3)
    assert len(batches) == 3
    assert engine.events == ["generate", "sleep", "wake_up", "update"] * 3


async def test_a_replica_that_comes_back_while_the_trainer_works_sleeps_too(tmp_path: Path) -> None:
    """It also waits for the evaluation of the previous version."""
    seen = asyncio.Event()

    async def evaluate(version: int) -> None:
        await seen.wait()

    async with StubEngine() as one, StubEngine() as two:
        pool = Replicas([one.url, two.url], live=True)
        await pool.connect(DEADLINE)
        watcher = PolicyWatcher(
            RunFolder(tmp_path), pool, update_timeout=5.0, restart_timeout=5.0, on_version=evaluate
        )
        watching = asyncio.create_task(watcher.run())
        sleeping = asyncio.create_task(watcher.sleep())
        await asyncio.sleep(0)
        assert [replica.state for replica in pool.all] == ["open", "open"]
        seen.set()
        async with asyncio.timeout(DEADLINE):
            await sleeping
            pool.set_state(pool.all[0], "down", "it restarted")
            while pool.all[0].state != "asleep":
                await pool.changed()
            RunFolder(tmp_path).weights(1).mkdir(parents=True)
            await watcher.wait_for(1, DEADLINE)
        assert one.events == two.events == ["sleep", "wake_up", "update"]
        assert [replica.state for replica in pool.all] == ["open", "open"]
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await pool.close()


def test_a_trainer_that_shares_its_device_has_it_for_its_steps_alone(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model starts in host memory. `meta` represents the device."""
    moves: list[str] = []
    for shares, steps in ((True, ["meta", "cpu"]), (False, [])):
        config = config_of(share_device=shares, model={"path": str(tiny_model_dir)}).trainer
        learner = Learner.load(config, Parallel(0, 1, torch.device("meta" if shares else "cpu")))
        assert {parameter.device.type for parameter in learner.model.parameters()} == {"cpu"}
        monkeypatch.setattr(learner, "_move", lambda device: moves.append(device.type))
        with learner.on_device():
            assert moves == steps[:1]
        assert moves == steps
        moves.clear()
