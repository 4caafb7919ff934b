"""Data between the processes: batches, weights, metrics."""

import logging
import math
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from braidrl.configs.algorithm import Aggregation, GRPOConfig
from braidrl.monitors.metrics import NONFINITE, MetricsWriter, read_metrics
from braidrl.orchestrator.train.algo import make_algorithm
from braidrl.orchestrator.train.samples import drop_zero_signal, flatten_trace
from braidrl.transport.rollouts import BatchReader, BatchWriter
from braidrl.transport.types import TrainingBatch, TrainingSample, encode
from braidrl.transport.weights import forget_weights_before, publish_weights
from braidrl.utils.run_folder import RunFolder
from tests.support.episodes import episode, trace


def batch(step: int = 1) -> TrainingBatch:
    sample = TrainingSample(
        token_ids=np.arange(5, dtype=np.int32),
        mask=np.array([False, False, True, True, True]),
        sampling_logprobs=np.array([0, 0, -1.5, -0.25, -3], np.float32),
        advantages=np.array([0, 0, 1, 1, 1], np.float32),
        env="reverse-text",
    )
    return TrainingBatch(step=step, samples=[sample])


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_a_batch_arrives_as_it_was_sent_and_stays_until_it_is_removed(run: RunFolder) -> None:
    reader = BatchReader(run)
    threading.Timer(0.1, lambda: BatchWriter(run).publish(batch(step=3))).start()
    received = reader.receive(3, timeout=10)
    sample, sent = received.samples[0], batch(step=3).samples[0]
    for stream in ("token_ids", "mask", "sampling_logprobs", "advantages"):
        np.testing.assert_array_equal(getattr(sample, stream), getattr(sent, stream))
    assert sample.rl_weights is None and sample.env == "reverse-text"
    assert reader.receive(3, timeout=0.1).step == 3
    reader.remove(3)
    assert run.published("batches") == []


def test_a_wait_has_a_heartbeat_and_a_deadline_that_says_where_to_look(run, caplog) -> None:
    caplog.set_level(logging.INFO)
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"batch of step 2 did not come within 0\.3 s.*orchestrator\.log"):
        BatchReader(run).receive(2, timeout=0.3, heartbeat=0.1)
    assert time.monotonic() - start < 5
    assert "waiting for the batch of step 2" in caplog.messages[0]


@pytest.mark.parametrize(("aggregation", "more"), [("token", set()), ("prompt", {"rl_weights"})])
async def test_grpo_sends_weights_only_where_its_tokens_weigh_unlike(
    aggregation: Aggregation, more: set[str]
) -> None:
    """Reads the bytes: absent streams have no key, rather than an empty value."""
    algorithm = make_algorithm(GRPOConfig(loss_aggregation=aggregation))
    episodes = [episode(trace(reward)) for reward in (1.0, 0.0)]
    for played in episodes:
        await algorithm.finalize_episode(played)
    await algorithm.score_group(episodes)
    flat = [flatten_trace(played.traces[0], seq_len=64, env="math").samples[0] for played in episodes]
    samples = [kept for sample in flat if (kept := drop_zero_signal(sample)) is not None]
    sent = msgspec.msgpack.decode(encode(TrainingBatch(step=1, samples=samples)))["samples"]
    for sample in sent:
        arrays = {name for name, value in sample.items() if isinstance(value, msgspec.msgpack.Ext)}
        assert arrays == {"token_ids", "mask", "sampling_logprobs", "advantages"} | more
        assert None not in sample.values()
    assert len(sent) == 2


@pytest.mark.parametrize("damage", ["cut", "zeros", "other"])
def test_a_damaged_batch_is_named(run: RunFolder, damage: str) -> None:
    path = BatchWriter(run).publish(batch())
    data = path.read_bytes()
    path.write_bytes(
        {"cut": data[: len(data) // 2], "zeros": bytes(len(data)), "other": b"\x81\xa1a\x01"}[damage]
    )
    with pytest.raises(ValueError, match=r"step_000001\.msgpack is not a training batch"):
        BatchReader(run).receive(1, timeout=1)


def test_every_flipped_byte_of_a_batch_is_either_read_or_a_value_error(run: RunFolder) -> None:
    path = BatchWriter(run).publish(batch())
    data = path.read_bytes()
    for index in range(len(data)):
        path.write_bytes(data[:index] + bytes([data[index] ^ 0xFF]) + data[index + 1 :])
        try:
            BatchReader(run).receive(1, timeout=1)
        except ValueError:
            continue


def test_a_batch_of_another_step_is_refused(run: RunFolder) -> None:
    BatchWriter(run).publish(batch(step=2)).rename(run.batch(1))
    with pytest.raises(ValueError, match="holds the batch of step 2, required is step 1"):
        BatchReader(run).receive(1, timeout=1)


def test_weights_appear_whole_or_not_at_all_and_never_change(run: RunFolder) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        publish_weights(run, 1, fail)
    assert run.published("weights") == []
    publish_weights(run, 1, lambda folder: (folder / "model").write_text("whole"))
    assert [path.name for path in run.weights(1).iterdir()] == ["model"]
    with pytest.raises(FileExistsError, match="version 1 is published already"):
        publish_weights(run, 1, lambda folder: None)


def test_only_weights_older_than_the_acknowledged_version_are_forgotten(run: RunFolder) -> None:
    for version in (1, 2, 3):
        publish_weights(run, version, lambda folder: (folder / "model").write_text("weights"))
    assert forget_weights_before(run, 2, keep=[1]) == []
    assert forget_weights_before(run, 2) == [1]
    assert forget_weights_before(run, 99) == [2]
    assert run.published("weights") == [3]
    assert sorted(path.name for path in (run.root / "weights").iterdir()) == ["step_000003"]


def test_metrics_are_exact_and_say_when_a_value_was_no_number(run: RunFolder) -> None:
    path = run.metrics("trainer")
    writer = MetricsWriter(path)
    writer.log(1, {"loss": 0.1 + 0.2, "tiny": 5e-324})
    writer.log(2, {"loss": math.nan, "norm": math.inf, "lr": 1e-5})
    assert read_metrics(path) == [
        {"step": 1, "loss": 0.1 + 0.2, "tiny": 5e-324},
        {"step": 2, "loss": None, "norm": None, "lr": 1e-5, NONFINITE: 2},
    ]
    assert read_metrics(run.metrics("orchestrator")) == []


def test_a_resumed_run_drops_the_metrics_of_steps_that_it_will_do_again(run: RunFolder) -> None:
    path = run.metrics("trainer")
    writer = MetricsWriter(path)
    for step in (1, 2, 3):
        writer.log(step, {"loss": step / 3})
    with path.open("a") as file:
        file.write('{"step": 4, "lo')
    writer.truncate_after(2)
    writer.log(3, {"loss": 9.0})
    assert [(line["step"], line["loss"]) for line in read_metrics(path)] == [(1, 1 / 3), (2, 2 / 3), (3, 9.0)]


def test_a_broken_metrics_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"step": 1}\nnot json\n')
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        read_metrics(tmp_path / "m.jsonl")
