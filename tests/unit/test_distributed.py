"""Two processes over gloo, with sharded parameters, do what one process does (field case 2).

Run as a script it is one of those processes: `test_distributed.py MODEL FOLDER`.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from braidrl.trainer.checkpoint import load_checkpoint, save_checkpoint
from braidrl.trainer.parallel import Parallel, data_parallel
from braidrl.trainer.step import Learner, NonFiniteError
from braidrl.utils.run_folder import RunFolder
from tests.unit.trainer_batches import make_batch, make_sample, trainer_config

ALONE = Parallel(0, 1, torch.device("cpu"))
CASES = ("rl", "ce", "ref_kl", "mixed")
OWN = {"tokens/packed", "tokens_per_second", "time/step", "memory/peak_gib"}
"""Metrics that depend on how many processes there are."""


def learn(model: Path, folder: Path, case: str, parallel: Parallel) -> None:
    """Two steps (for "mixed" with a restart in between); leaves checkpoints, weights and metrics."""
    run = RunFolder(folder / case)
    config = trainer_config(model, run.root, micro_batch_tokens=24)
    learner, rows = Learner.load(config, parallel), []
    for step in (1, 2):
        rows.append(learner.step(step, make_batch(step, None if case == "mixed" else case, size=5)))
        save_checkpoint(run.trainer_checkpoint(step), learner.model, learner.optimizer, step, parallel)
        if step == 1 and case == "mixed":
            learner = Learner.load(config, parallel)
            load_checkpoint(run.trainer_checkpoint(1), learner.model, learner.optimizer, parallel)
    learner.publish(run, 2)
    if parallel.leads:
        (run.root / "rows.json").write_text(json.dumps(rows))


def refuse(model: Path, folder: Path, parallel: Parallel) -> None:
    """A sample that only one process holds is not finite: every process stops, and nobody waits."""
    learner = Learner.load(trainer_config(model, folder), parallel)
    batch = make_batch(1, size=5)
    batch[2] = make_sample(77)
    batch[2].temperature = 1e-40
    try:
        learner.step(1, batch)
    except NonFiniteError as error:
        (folder / f"refused_{parallel.rank}").write_text(str(error))


def worker(model: Path, folder: Path) -> None:
    with data_parallel(timeout=60) as parallel:
        assert parallel.world_size == 2
        learner = Learner.load(trainer_config(model, folder), parallel)
        assert all(isinstance(parameter, DTensor) for parameter in learner.model.parameters())
        for case in CASES:
            learn(model, folder, case, parallel)
        half = Learner.load(trainer_config(model, folder, dtype="bfloat16"), parallel)
        row = half.step(1, make_batch(1))
        if parallel.leads:
            (folder / "bfloat16.json").write_text(json.dumps(row))
        refuse(model, folder, parallel)


@pytest.fixture(scope="module")
def folders(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """What one process leaves, and what two leave."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    processes = subprocess.Popen(
        [sys.executable, "-m", *launch, __file__, str(tiny_model_dir), str(two)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        for case in CASES:
            learn(tiny_model_dir, one, case, ALONE)
        output, _ = processes.communicate(timeout=200)
    finally:
        if processes.poll() is None:
            os.killpg(processes.pid, signal.SIGKILL)
    assert processes.returncode == 0, output
    return one, two


@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_the_gradients_and_weights_of_one(folders: tuple[Path, Path], case: str) -> None:
    one, two = (RunFolder(folder / case) for folder in folders)
    for step in (1, 2):
        for file in ("model", "optimizer"):
            name = f"{file}.safetensors"
            expected = load_file(one.trainer_checkpoint(step) / name)
            tensors = load_file(two.trainer_checkpoint(step) / name)
            assert tensors.keys() == expected.keys()
            # after the first step, exp_avg is the clipped gradient times a constant
            for key, tensor in tensors.items():
                scale = float(expected[key].abs().max())
                torch.testing.assert_close(tensor, expected[key], rtol=1e-4, atol=1e-5 * scale, msg=key)
    expected = load_file(one.weights(2) / "model.safetensors")
    weights = load_file(two.weights(2) / "model.safetensors")
    assert weights.keys() == expected.keys()
    for key, tensor in weights.items():
        torch.testing.assert_close(tensor, expected[key], rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_report_the_metrics_of_one(folders: tuple[Path, Path], case: str) -> None:
    one, two = (json.loads((folder / case / "rows.json").read_text()) for folder in folders)
    for row, expected in zip(two, one, strict=True):
        assert row.keys() == expected.keys() > OWN
        for name in expected.keys() - OWN:
            assert row[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name


def test_one_process_resumes_what_two_began(folders: tuple[Path, Path], tiny_model_dir, tmp_path) -> None:
    learner = Learner.load(trainer_config(tiny_model_dir, tmp_path), ALONE)
    run = RunFolder(folders[1] / "mixed")
    assert load_checkpoint(run.trainer_checkpoint(1), learner.model, learner.optimizer, ALONE) == 1
    learner.step(2, make_batch(2, size=5))
    expected = load_file(run.trainer_checkpoint(2) / "model.safetensors")
    for name, parameter in learner.model.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-4, atol=1e-5)


def test_bfloat16_shards_compute_what_one_process_computes(folders, tiny_model_dir, tmp_path) -> None:
    expected = Learner.load(trainer_config(tiny_model_dir, tmp_path, dtype="bfloat16"), ALONE).step(
        1, make_batch(1)
    )
    row = json.loads((folders[1] / "bfloat16.json").read_text())
    assert row["loss"] == pytest.approx(expected["loss"], rel=1e-2)
    assert row["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-2)


def test_every_process_refuses_a_step_that_is_not_finite_in_one(folders: tuple[Path, Path]) -> None:
    errors = [(folders[1] / f"refused_{rank}").read_text() for rank in (0, 1)]
    assert errors[0] == errors[1] and "trace 't77'" in errors[0]


if __name__ == "__main__":
    worker(Path(sys.argv[1]), Path(sys.argv[2]))
