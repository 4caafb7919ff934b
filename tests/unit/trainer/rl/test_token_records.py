"""Per-token records of the trainer: the values of its step, by sample, for every packing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from braidrl.configs.trainer.config import TrainerConfig
from braidrl.trainer.parallel import Parallel, data_parallel
from braidrl.trainer.rl.step import Learner
from braidrl.trainer.rl.token_records import TokenRecorder, spread
from braidrl.trainer.rl.train import train
from braidrl.transport.rollouts import BatchWriter
from braidrl.transport.types import TrainingBatch, TrainingSample
from braidrl.utils.run_folder import RunFolder
from tests.support.ranks import run_ranks
from tests.support.trainer_batches import make_batch, make_sample, trainer_config

ALONE = Parallel(0, 1, torch.device("cpu"))


def recorded(
    config: TrainerConfig,
    samples: list[TrainingSample],
    path: Path,
    limit: int = 10**6,
    parallel: Parallel = ALONE,
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return metrics and records of a first step."""
    recorder = TokenRecorder(samples, limit, parallel)
    metrics = Learner.load(config, parallel).step(1, samples, recorder)
    recorder.write(path, 1)
    parallel.barrier()
    return metrics, [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_what_the_step_computed(tiny_model_dir: Path, tmp_path: Path) -> None:
    samples = make_batch(1)
    metrics, records = recorded(trainer_config(tiny_model_dir, tmp_path), samples, tmp_path / "t.jsonl")
    assert [(r["episode"], r["trace"], r["branch"]) for r in records] == [
        (s.episode_id, s.trace_id, s.branch) for s in samples
    ]
    for name in ("rl", "ce", "ref_kl"):
        assert sum(len(record.get(name, [])) for record in records) == metrics[f"tokens/{name}"]
    rl = [record for record in records if "rl" in record]
    x, mu = (np.concatenate([record[key] for record in rl]) for key in ("logprobs", "sampling_logprobs"))
    assert np.mean(np.expm1(x - mu) - (x - mu)) == pytest.approx(metrics["mismatch_kl"], rel=1e-4)
    ce = np.concatenate([record["logprobs"] for record in records if "ce" in record])
    assert -ce.mean() == pytest.approx(metrics["nll"], rel=1e-6)
    entropy = np.concatenate([record["entropy"] for record in records])
    assert entropy.mean() == pytest.approx(metrics["entropy"], rel=1e-6)
    for record, sample in zip(records, samples, strict=True):
        assert record["positions"] == np.flatnonzero(sample.mask).tolist()
        assert record["sampling_logprobs"] == sample.sampling_logprobs[sample.mask].tolist()


def test_pull_is_minus_the_derivative_of_the_loss(tiny_model_dir: Path, tmp_path: Path) -> None:
    samples = make_batch(1)
    _, records = recorded(trainer_config(tiny_model_dir, tmp_path), samples, tmp_path / "t.jsonl")
    counts = {n: sum(len(r.get(n, [])) for r in records) for n in ("rl", "ce", "ref_kl")}
    for record in records:
        x, mu = (np.array(record[key]) for key in ("logprobs", "sampling_logprobs"))
        expected = {
            "rl": lambda r, x=x, mu=mu: np.array(r["advantages"]) * np.exp(x - mu),
            "ce": lambda r: np.array(r["ce"]),
            "ref_kl": lambda r, x=x, mu=mu: (np.array(r["ref_logprobs"]) - x) * np.exp(x - mu),
        }
        (name,) = expected.keys() & record.keys()
        np.testing.assert_allclose(record["pull"], expected[name](record) / counts[name], rtol=1e-4)


def test_a_token_that_the_trust_region_rejects_has_no_pull_even_with_a_regulariser(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    sample = make_sample(3)
    sample.sampling_logprobs[5] = -0.01  # its probability under the policy is about 1/265
    changes = {"reference_kl": {"coef": 0.5, "path": str(tiny_model_dir)}, "entropy_coef": 0.1}
    config = trainer_config(tiny_model_dir, tmp_path, **changes)
    metrics, (record,) = recorded(config, [sample], tmp_path / "t.jsonl")
    pulls = dict(zip(record["positions"], record["pull"], strict=True))
    assert metrics["is_masked"] == pytest.approx(1 / len(pulls))
    assert pulls.pop(5) == 0.0 and all(pulls.values())


def test_records_do_not_depend_on_how_the_batch_is_cut(tiny_model_dir: Path, tmp_path: Path) -> None:
    samples = make_batch(2)
    rows = []
    for name, tokens in (("one", 512), ("many", 16)):
        config = trainer_config(tiny_model_dir, tmp_path, micro_batch_tokens=tokens)
        rows.append(recorded(config, samples, tmp_path / name)[1])
    assert {record["micro_batch"] for record in rows[0]} == {0}
    assert {record["micro_batch"] for record in rows[1]} > {0, 1}
    for one, many in zip(*rows, strict=True):
        for name in ("logprobs", "entropy", "pull"):
            np.testing.assert_allclose(one[name], many[name], rtol=1e-4, atol=1e-7)


def test_mini_batches_and_masks_of_the_step_are_named(tiny_model_dir: Path, tmp_path: Path) -> None:
    samples = make_batch(4, "rl", size=4)
    changes = {"loss": {"type": "grpo"}, "mini_batches": 2, "is_correction": {"level": "token"}}
    config = trainer_config(tiny_model_dir, tmp_path, **changes)
    _, records = recorded(config, samples, tmp_path / "t.jsonl")
    assert {record["mini_batch"] for record in records} == {0, 1}
    for record in records:
        count = len(record["positions"])
        assert all(len(record[name]) == count for name in ("old_logprobs", "is_weights", "loss_weights"))
        if record["mini_batch"] == 0:  # the policy has not changed yet
            np.testing.assert_allclose(record["old_logprobs"], record["logprobs"], atol=1e-5)


def shared(model: Path, folder: Path, name: str, parallel: Parallel) -> list[dict[str, Any]]:
    """Return the records of a step with several rows and mini batches."""
    config = trainer_config(model, folder, micro_batch_tokens=24, mini_batches=2)
    return recorded(config, make_batch(5, size=8), folder / name, parallel=parallel)[1]


def write_records(model: Path, folder: Path) -> None:
    with data_parallel(timeout=60) as parallel:
        shared(model, folder, "two", parallel)


def test_two_processes_record_what_one_does(tiny_model_dir: Path, tmp_path: Path) -> None:
    run_ranks(2, write_records, tiny_model_dir, tmp_path)
    two = [json.loads(line) for line in (tmp_path / "two").read_text().splitlines()]
    for one, both in zip(shared(tiny_model_dir, tmp_path, "one", ALONE), two, strict=True):
        assert (one["episode"], one["positions"], one["mini_batch"]) == (
            both["episode"],
            both["positions"],
            both["mini_batch"],
        )
        for name in ("logprobs", "entropy", "pull"):
            np.testing.assert_allclose(both[name], one[name], rtol=1e-4, atol=1e-6)
    assert {record["micro_batch"] % 2 for record in two} == {0, 1}  # each process has part of the records


def test_more_tokens_than_the_limit_leaves_whole_samples_out(tiny_model_dir: Path, tmp_path: Path) -> None:
    samples = make_batch(1)
    limit = sum(len(sample.token_ids) for sample in samples) // 2
    _, records = recorded(trainer_config(tiny_model_dir, tmp_path), samples, tmp_path / "t.jsonl", limit)
    taken = [record for record in records if "logprobs" in record]
    assert len(records) == len(samples) > len(taken) > 0
    assert sum(record["tokens"] for record in taken) <= limit


def test_samples_are_spread_over_the_batch() -> None:
    assert spread([5] * 10, 50) == list(range(10))
    assert spread([5] * 10, 0) == []
    third = spread([1] * 300, 100)
    assert len(third) == 100 and max(np.diff([-1, *third, 300])) <= 5


def test_the_trainer_writes_them_and_resuming_forgets_later_ones(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    config = trainer_config(tiny_model_dir, tmp_path, max_steps=2)
    run = RunFolder(config.output_dir)
    for step in (1, 2):
        BatchWriter(run).publish(TrainingBatch(step=step, samples=make_batch(step)))
    train(config, None)
    lines = run.token_records(2).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2] * 6
    run.forget_after(1)
    assert run.token_records(1).exists() and not run.token_records(2).exists()
