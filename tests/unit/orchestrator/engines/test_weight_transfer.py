"""Weights from the trainer's memory to a server's workers: the real sender and orchestrator, a stub server, and threads
in the place of NCCL."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from stub_vllm import DEADLINE, StubVLLM, pool_of

from braidrl.configs.rl import RLConfig
from braidrl.orchestrator.engines.pool import ReplicaError, Replicas
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.step import Learner
from braidrl.trainer.state.transfer import WeightSender
from braidrl.transport.transfer import Offer, Rendezvous, read_offer, write_offer
from braidrl.utils.run_folder import RunFolder
from tests.support.trainer_batches import trainer_config

UPDATE = ["/pause?mode=keep", "/start_weight_update", "/update_weights", "/finish_weight_update"]
UPDATE += ["/reset_prefix_cache?reset_running_requests=true", "/update_weight_version", "/resume"]
FIRST = [UPDATE[0], "/init_weight_transfer_engine", *UPDATE[1:]]


class Wire:
    """Process group of two, with blocking broadcasts."""

    def __init__(self, place: Rendezvous) -> None:
        self.place = place
        self.tensors: queue.Queue[torch.Tensor] = queue.Queue(1)
        self.met = threading.Event()

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            self.tensors.put(tensor, timeout=DEADLINE)
        self.tensors.join()


@dataclass
class Worker(StubVLLM):
    """Server whose worker joins a wire and loads the tensors that it receives."""

    wires: list[Wire] = field(default_factory=list)
    """All wires created so far."""
    wire: Wire | None = None
    weights: dict[str, torch.Tensor] = field(default_factory=dict)

    def open_group(self, place: Rendezvous) -> Wire:
        """Trainer side of the group, which waits for the worker."""
        wire = Wire(place)
        self.wires.append(wire)
        assert wire.met.wait(DEADLINE)
        return wire

    def restart(self) -> None:
        self.version, self.wire = "default", None

    async def transfer(self, path: str, body: Any) -> None:
        if path == "/init_weight_transfer_engine":
            place = Rendezvous(**body["init_info"])
            # The trainer opens its side in a thread, which may run later than this request. NCCL would wait as well.
            while (wire := next((each for each in self.wires if each.place == place), None)) is None:
                await asyncio.sleep(0.001)
            self.wire = wire
            self.wire.met.set()
        elif path == "/update_weights":
            await self._receive(**body["update_info"])

    async def _receive(self, names: list[str], dtype_names: list[str], shapes: list[list[int]]) -> None:
        assert self.wire is not None
        for name, dtype, shape in zip(names, dtype_names, shapes, strict=True):
            while self.wire.tensors.empty():
                await asyncio.sleep(0.001)
            tensor = self.wire.tensors.get_nowait()
            assert tensor.dtype == getattr(torch, dtype) and list(tensor.shape) == shape
            self.weights[name] = tensor.clone()
            self.wire.tensors.task_done()


@contextmanager
def sending(worker: Worker) -> Iterator[WeightSender]:
    sender = WeightSender("127.0.0.1", worker.open_group)
    try:
        yield sender
    finally:
        sender.close()


def tensors(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {
        "model.embed_tokens.weight": torch.randn(7, 4, generator=generator).bfloat16(),
        "model.norm.weight": torch.randn(4, generator=generator),
    }


def offered(folder: Path, sender: WeightSender, version: int) -> Path:
    """Return the folder of a version that the sender offers."""
    path = folder / f"step_{version}"
    path.mkdir()
    write_offer(path, sender.offer(version, tensors(version)))
    return path


def urls(worker: Worker) -> list[str]:
    return [url for url, _ in worker.calls]


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Worker, WeightSender, Replicas]]:
    worker = Worker()
    with sending(worker) as sender:
        async with pool_of(worker) as pool:
            yield worker, sender, pool


def test_an_offer_names_every_tensor_of_the_state(tmp_path: Path) -> None:
    with sending(Worker()) as sender:
        offer = read_offer(offered(tmp_path, sender, 1))
    assert offer is not None
    assert offer.names == list(tensors(1))
    assert offer.dtype_names == ["bfloat16", "float32"]
    assert offer.shapes == [[7, 4], [4]]
    assert read_offer(tmp_path) is None


def test_a_trainer_offers_what_it_would_have_written(
    tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An offer has the tensors of a weights folder, tied ones once. A version with a checkpoint is a folder."""
    with sending(Worker()) as sender:
        monkeypatch.setattr("braidrl.trainer.state.publish.open_sender", lambda host, device: sender)
        config = trainer_config(tiny_model_dir, tmp_path, "bfloat16", weights={"transfer": "nccl"})
        learner, run = Learner.load(config, Parallel(0, 1, torch.device("cpu"))), RunFolder(tmp_path)
        learner.publish(run, 1, whole=False)
        learner.publish(run, 2, whole=True)
        offer, kept = read_offer(run.weights(1)), sender.versions[1]
    written = load_file(run.weights(2) / "model.safetensors")
    assert offer is not None and list(run.weights(1).iterdir()) == [run.weights(1) / "transfer.json"]
    assert offer.names == list(kept) and set(kept) == set(written)
    assert offer.dtype_names == ["bfloat16"] * len(kept)
    assert offer.shapes == [list(written[name].shape) for name in offer.names]
    torch.testing.assert_close(kept, written, rtol=0, atol=0)
    assert read_offer(run.weights(2)) is None


def test_nccl_without_a_gpu_is_an_error(tmp_path: Path, tiny_model_dir: Path) -> None:
    config = trainer_config(tiny_model_dir, tmp_path, weights={"transfer": "nccl"})
    with pytest.raises(ValueError, match='sends from a GPU, and the trainer is on cpu; use "filesystem"'):
        Learner.load(config, Parallel(0, 1, torch.device("cpu")))


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({"inference": {"engine": "torch"}}, "needs vLLM, .*inference.engine is 'torch'"),
        ({"trainer": {"weights": {"transfer": "nccl", "delta": True}}}, r"weights\.delta .*folders"),
        ({"trainer": {"weights": {"transfer": "nccl"}, "lora": {}}}, "whole models"),
    ],
)
def test_settings_that_conflict_with_nccl_are_refused(blocks: dict[str, Any], message: str) -> None:
    config = {
        "model": {"path": "model"},
        "trainer": {"weights": {"transfer": "nccl"}},
        "inference": {"engine": "vllm"},
        "orchestrator": {"train": {"source": [{"env": {"taskset": {"id": "reverse-text"}}}]}},
    }
    assert RLConfig.model_validate(config).inference.vllm.weight_transfer
    with pytest.raises(ValidationError, match=message):
        RLConfig.model_validate(config | blocks)


async def test_workers_load_exactly_what_the_trainer_offered(tmp_path: Path) -> None:
    """Workers join once. Later updates only send weights."""
    async with connected() as (worker, sender, pool):
        for version in (1, 2):
            await pool.update(pool.all[0], offered(tmp_path, sender, version), version, DEADLINE)
            torch.testing.assert_close(worker.weights, tensors(version), rtol=0, atol=0)
            assert pool.all[0].version == version
    assert urls(worker) == FIRST + UPDATE
    (wire,) = worker.wires
    assert (wire.place.world_size, wire.place.rank_offset, wire.place.packed) == (3, 1, False)
    assert list(sender.versions) == [2], "what nobody can ask for any more is dropped"


async def test_a_restarted_server_joins_the_trainer_again(tmp_path: Path) -> None:
    """This also holds if a version in between came from a folder."""
    whole = tmp_path / "step_2"
    whole.mkdir()
    async with connected() as (worker, sender, pool):
        await pool.update(pool.all[0], offered(tmp_path, sender, 1), 1, DEADLINE)
        worker.restart()
        await pool.update(pool.all[0], whole, 2, DEADLINE)
        await pool.update(pool.all[0], offered(tmp_path, sender, 3), 3, DEADLINE)
        torch.testing.assert_close(worker.weights, tensors(3), rtol=0, atol=0)
    assert len(worker.wires) == 2
    assert urls(worker)[-len(FIRST) :] == FIRST


async def test_a_version_that_is_not_offered_ends_the_run_at_once(tmp_path: Path) -> None:
    """The worker blocks in its broadcast, but the orchestrator does not wait for it."""
    async with connected() as (_, sender, pool):
        path = offered(tmp_path, sender, 1)
        sender.versions.clear()
        with pytest.raises(ReplicaError, match=r"/send answered 500: .*v1 is not offered"):
            await pool.update(pool.all[0], path, 1, DEADLINE)


async def test_a_transfer_requires_the_token_of_the_offer(tmp_path: Path) -> None:
    async with connected() as (worker, sender, pool):
        path = offered(tmp_path, sender, 1)
        offer = read_offer(path)
        assert offer is not None
        write_offer(path, Offer(offer.url, "another", offer.names, offer.dtype_names, offer.shapes))
        with pytest.raises(ReplicaError, match="/join answered 401"):
            await pool.update(pool.all[0], path, 1, DEADLINE)
    assert worker.wires == []
