"""The orchestrator from episodes to batches, against a stub engine and a stub trainer."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from braidrl.monitors.metrics import read_metrics
from braidrl.orchestrator.pipeline.no_signal import NoSignalError
from braidrl.transport.types import TrainingBatch
from braidrl.utils.run_folder import RunFolder
from tests.support.stub_trainer import run_stub


def content(batch: TrainingBatch) -> list[tuple[Any, ...]]:
    """Return what must be reproducible: order, tokens (determined by prompts and seeds) and credit."""
    return [
        (sample.group_id, sample.token_ids.tolist(), sample.advantages.tolist(), sample.version_start)
        for sample in batch.samples
        if sample.advantages is not None
    ]


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_strictly_on_policy_runs_repeat_whatever_the_timing(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    slow = {"slow_tasks": (1, 2), "seconds": 0.3}
    quick, _ = await run_stub(tiny_model_dir, tmp_path / "quick", max_steps=3)
    late, _ = await run_stub(tiny_model_dir, tmp_path / "late", max_steps=3, env=slow, train_seconds=0.2)
    other, _ = await run_stub(tiny_model_dir, tmp_path / "other", max_steps=3, seed=1)
    assert [batch.step for batch in quick] == [1, 2, 3]
    assert [len(batch.samples) for batch in quick] == [8, 8, 8]
    # both tasksets have the same prompts; only the timing differs
    assert [content(batch) for batch in quick] == [content(batch) for batch in late]
    assert [content(batch) for batch in quick] != [content(batch) for batch in other]
    for batch in quick:
        assert {sample.version_start for sample in batch.samples} == {batch.step - 1}
        assert {sample.version_end for sample in batch.samples} == {batch.step - 1}
        tokens = [tuple(sample.token_ids) for sample in batch.samples]
        assert len(set(tokens)) == len(tokens)  # siblings differ


async def test_four_steps_equal_two_and_two_more(tiny_model_dir: Path, tmp_path: Path) -> None:
    whole, _ = await run_stub(tiny_model_dir, tmp_path / "whole", max_steps=4)
    first, _ = await run_stub(tiny_model_dir, tmp_path / "parts", max_steps=2)
    second, engine = await run_stub(tiny_model_dir, tmp_path / "parts", max_steps=4, resume_step=2)
    assert engine.updates[0]["version"] == 2
    assert [content(batch) for batch in whole] == [content(batch) for batch in first + second]
    steps = [line["step"] for line in read_metrics(RunFolder(tmp_path / "parts").metrics("orchestrator"))]
    assert steps == [1, 2, 3, 4]


@pytest.mark.parametrize("bound", [1, 2])
async def test_staleness_stays_within_its_bound(tiny_model_dir: Path, tmp_path: Path, bound: int) -> None:
    settings = {"max_steps": 6, "max_off_policy_steps": bound, "engine": {"latency": 0.05}}
    slow = {"slow_tasks": (3,), "seconds": 0.6}
    batches, _ = await run_stub(tiny_model_dir, tmp_path, env=slow, **settings)
    lags = [batch.step - 1 - sample.version_start for batch in batches for sample in batch.samples]
    assert [len(batch.samples) for batch in batches] == [8] * 6
    assert min(lags) >= 0
    assert 1 <= max(lags) <= bound
    metrics = read_metrics(RunFolder(tmp_path).metrics("orchestrator"))
    assert max(line["staleness/max"] or 0 for line in metrics) == max(lags)


async def test_resume_dispatches_what_was_in_flight_first(tiny_model_dir: Path, tmp_path: Path) -> None:
    settings = {"max_off_policy_steps": 2, "checkpoint": {"interval": 1}, "engine": {"latency": 0.1}}
    slow = {"slow_tasks": (1, 3, 5), "seconds": 0.5}
    await run_stub(tiny_model_dir, tmp_path, max_steps=3, env=slow, **settings)
    run = RunFolder(tmp_path)
    state = json.loads(run.orchestrator_checkpoint(2).read_bytes())
    work = [(item["index"], item["task"]) for item in state["dispatcher"]["work"]]
    assert work
    for step in (1, 2):  # the trainer's half of a checkpoint
        run.trainer_checkpoint(step).mkdir(parents=True, exist_ok=True)
    run.forget_after(2)
    await run_stub(tiny_model_dir, tmp_path, max_steps=3, resume_step=2, **settings)
    ended = {
        record["braid"]["group"]: record["task"]["data"]["idx"] for record in records(run.train_episodes(3))
    }
    for index, task in work:
        assert ended.get(f"stub-{index:06d}", task) == task
    assert ended.keys() & {f"stub-{index:06d}" for index, _ in work}


async def test_records_say_everything_about_an_episode(tiny_model_dir: Path, tmp_path: Path) -> None:
    batches, _ = await run_stub(tiny_model_dir, tmp_path, max_steps=1)
    by_trace = {sample.trace_id: sample for sample in batches[0].samples}
    lines = records(RunFolder(tmp_path).train_episodes(1))
    traces = {trace["id"]: (record, trace) for record in lines for trace in record["traces"]}
    assert by_trace.keys() <= traces.keys()
    for trace_id, sample in by_trace.items():
        record, trace = traces[trace_id]
        nodes = trace["nodes"]
        assert [token for node in nodes for token in node["token_ids"]] == sample.token_ids.tolist()
        logprobs = np.float32([logprob for node in nodes for logprob in node["logprobs"]])
        np.testing.assert_array_equal(logprobs, sample.sampling_logprobs[sample.mask])
        assert record["braid"]["versions"][trace_id] == [[[0, int(sample.mask.sum())]]]
        assert record["braid"]["rewards"][trace_id] == sample.reward
        assert record["braid"]["group"] == record["group"]["id"] == sample.group_id
        assert record["braid"]["outcome"] == "signal"


async def test_an_evaluation_sees_one_version_and_a_slow_last_one_is_not_cut(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    env = {"taskset": {"id": "stub-tasks", "num_tasks": 3, "slow_tasks": (0,), "seconds": 1.0}}
    evals = {"interval": 2, "source": [{"env": env, "name": "held", "rollouts_per_task": 2}]}
    settings = {"max_steps": 3, "eval": evals, "max_off_policy_steps": 1}
    await run_stub(tiny_model_dir, tmp_path, **settings)
    run = RunFolder(tmp_path)
    lines = read_metrics(run.metrics("eval"))
    assert [line["step"] for line in lines] == [0, 2, 3]
    # The seeds are the same, and the stub's tokens do not depend on the weights.
    assert len({line["eval/held/reward/mean"] for line in lines}) == 1
    assert {line["eval/held/num"] for line in lines} == {6}
    assert {line["eval/held/errors"] for line in lines} == {0}
    for version in (0, 2, 3):
        spans = [
            span
            for record in records(run.eval_episodes(version))
            for span in record["braid"]["versions"].values()
        ]
        assert {call[0][0] for trace in spans for call in trace} == {version}


@pytest.mark.parametrize(
    ("behaviour", "explanation"),
    [
        ("constant", "100% had equal rewards.*no episode failed"),
        ("raises", "100% had too few episodes without error.*16 of the episodes failed: .*out of order"),
        ("endless", "of the episodes failed: .*not generated and scored within 0.5 s"),
    ],
)
async def test_a_run_that_cannot_learn_stops_with_the_reason(
    tiny_model_dir: Path, tmp_path: Path, behaviour: str, explanation: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Short only if it has to expire, so that the other faults do not become timeouts on a busy machine.
    timeout = 0.5 if behaviour == "endless" else 60.0
    source = {"env": {"taskset": {"id": "stub-tasks", "behaviour": behaviour}}, "timeout": timeout}
    train = {"group_size": 4, "sampling": {"max_tokens": 16}, "source": [source]}
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(NoSignalError, match=f"(?s){explanation}.*max_empty"),
    ):
        await run_stub(tiny_model_dir, tmp_path, train=train, max_empty_batches=2)
    assert any("no signal in" in line for line in caplog.messages)
    ended = records(RunFolder(tmp_path).train_episodes(1))
    assert len(ended) >= 16  # the episodes that led to the error are recorded
    assert {bool(record.get("errors") or record["traces"][0].get("errors")) for record in ended} == {
        behaviour != "constant"
    }


async def test_a_judge_outage_is_not_a_wrong_answer(tiny_model_dir: Path, tmp_path: Path) -> None:
    batches, _ = await run_stub(tiny_model_dir, tmp_path, env={"behaviour": "outage"})
    assert [len(batch.samples) for batch in batches] == [8, 8]
    assert min(sample.reward for batch in batches for sample in batch.samples) >= 0.4
    run = RunFolder(tmp_path)
    failed = sum(line["episodes/failed"] or 0 for line in read_metrics(run.metrics("orchestrator")))
    errors = [record for step in (1, 2) for record in records(run.train_episodes(step)) if not record["ok"]]
    assert failed == len(errors) > 0
    for step, batch in enumerate(batches, start=1):
        for group in {sample.group_id for sample in batch.samples}:
            good = [r for r in records(run.train_episodes(step)) if r["braid"]["group"] == group and r["ok"]]
            rewards = {
                trace: reward for record in good for trace, reward in record["braid"]["rewards"].items()
            }
            mean = np.mean(list(rewards.values()))
            for sample in batch.samples:
                if sample.group_id == group:
                    credit = sample.advantages[sample.mask]
                    np.testing.assert_allclose(credit, rewards[sample.trace_id] - mean, atol=1e-6)


async def test_the_last_policy_has_a_deadline(tiny_model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"waited 0\.5 s for policy v1.*check the trainer's log"):
        await run_stub(tiny_model_dir, tmp_path, max_steps=2, policy_timeout=0.5, train_seconds=30.0)
