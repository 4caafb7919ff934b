"""Two and three gloo processes with sharded parameters give the results of one process (FIELD_CASES 2)."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from braidrl.configs.trainer.config import TrainerConfig
from braidrl.trainer.parallel import Parallel, data_parallel
from braidrl.trainer.rl.step import Learner, NonFiniteError
from braidrl.trainer.shards import PartsReader
from braidrl.trainer.state.checkpoint import load_checkpoint, save_checkpoint
from braidrl.trainer.state.export import export_model
from braidrl.transport.types import TrainingSample
from braidrl.utils.model_source import ModelSource
from braidrl.utils.run_folder import RunFolder
from tests.support.ranks import run_ranks
from tests.support.trainer_batches import make_batch, make_sample, trainer_config

ALONE = Parallel(0, 1, torch.device("cpu"))
OPTIONS: dict[str, dict[str, Any]] = {
    "rl": {},
    "ce": {},
    "ref_kl": {},
    "mixed": {},
    "surrogate": {
        "loss": {"type": "gspo"},
        "loss_agg_mode": "seq-mean-token-mean",
        "is_correction": {"level": "geometric", "action": "mask", "lower_bound": 0.95, "upper_bound": 1.05},
        "m2po": {"threshold": 0.008},
        "opsm": {"delta": 0.0, "reference": "rollout"},
        "entropy_coef": 0.1,
        "reference_kl": {"path": "", "coef": 0.5, "kl_type": "k2", "update_interval": 1},
        "mini_batches": 2,
    },
    "lora": {
        "lora": {"rank": 4},
        "reference_kl": {"path": "", "coef": 0.5, "kl_type": "k2", "update_interval": 1},
    },
    "custom": {"loss": {"type": "custom", "import_path": "tests.support.custom_losses.policy_gradient"}},
}
"""Options of each case. A case named after a component trains only that component."""
CASES = tuple(OPTIONS)
THREE = ("mixed", "surrogate", "lora", "custom")
"""Cases that are also run with three processes."""
OWN = {"tokens/packed", "tokens_per_second", "time/step", "memory/peak_gib"}
"""Metrics that depend on the number of processes."""


def load_whole(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint, independent of the number of writers."""
    with PartsReader(folder, name) as parts:
        return {key: parts.read(key) for key in parts.names()}


def case_config(model: Path, folder: Path, case: str) -> TrainerConfig:
    options = copy.deepcopy(OPTIONS[case])
    if "reference_kl" in options:
        options["reference_kl"]["path"] = str(model)
    return trainer_config(model, folder, micro_batch_tokens=24, **options)


def case_batch(case: str, step: int) -> list[TrainingSample]:
    component = case if case in ("rl", "ce", "ref_kl") else None
    more = make_batch(step + 10, "rl", size=8) if case == "surrogate" else []
    return make_batch(step, component, size=5) + more


def learn(model: Path, folder: Path, case: str, parallel: Parallel) -> None:
    """Take two steps, with a restart in between for some cases. Saves checkpoints, weights and metrics."""
    run = RunFolder(folder / case)
    config = case_config(model, run.root, case)
    learner, rows = Learner.load(config, parallel), []
    for step in (1, 2):
        rows.append(learner.step(step, case_batch(case, step)))
        state = learner.model, learner.optimizer
        save_checkpoint(run.trainer_checkpoint(step), *state, step, parallel, learner.moving_reference)
        if step == 1 and case in ("mixed", "surrogate", "lora"):
            learner = Learner.load(config, parallel)
            state = learner.model, learner.optimizer
            load_checkpoint(run.trainer_checkpoint(1), *state, parallel, learner.moving_reference)
    learner.publish(run, 2)
    if parallel.leads:
        (run.root / "rows.json").write_text(json.dumps(rows))


def refuse(model: Path, folder: Path, parallel: Parallel) -> None:
    """Train a non-finite sample that only one process has. All processes must stop with an error, and none may wait."""
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
        learner = Learner.load(trainer_config(model, folder), parallel)
        assert all(isinstance(parameter, DTensor) for parameter in learner.model.parameters())
        if parallel.world_size == 3:
            for case in THREE:
                learn(model, folder, case, parallel)
            return
        for case in CASES:
            learn(model, folder, case, parallel)
        half = Learner.load(trainer_config(model, folder, dtype="bfloat16"), parallel)
        row = half.step(1, make_batch(1))
        if parallel.leads:
            (folder / "bfloat16.json").write_text(json.dumps(row))
        refuse(model, folder, parallel)


class Folders(dict[int, Path]):
    """Results by number of processes, computed on first access."""

    def __init__(self, model: Path, root: Path) -> None:
        super().__init__()
        self.model, self.root = model, root

    def __missing__(self, count: int) -> Path:
        folder = self[count] = self.root / str(count)
        folder.mkdir()
        if count > 1:
            run_ranks(count, worker, self.model, folder)
        for case in CASES if count == 1 else ():
            learn(self.model, folder, case, ALONE)
        return folder


@pytest.fixture(scope="module")
def folders(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tiny_model_dir, tmp_path_factory.mktemp("processes"))


RUNS = [
    *((2, case) for case in CASES),
    *(pytest.param(3, case, marks=pytest.mark.slow) for case in THREE),
]


@pytest.mark.parametrize(("count", "case"), RUNS)
def test_they_give_the_gradients_and_weights_of_one(folders: Folders, count: int, case: str) -> None:
    one, two = RunFolder(folders[1] / case), RunFolder(folders[count] / case)
    files = ("model", "optimizer", "reference") if "reference_kl" in OPTIONS[case] else ("model", "optimizer")
    for step in (1, 2):
        for file in files:
            expected = load_file(one.trainer_checkpoint(step) / f"{file}.safetensors")
            tensors = load_whole(two.trainer_checkpoint(step), file)
            assert tensors.keys() == expected.keys()
            # after the first step, exp_avg is a constant times the clipped gradient
            for key, tensor in tensors.items():
                scale = float(expected[key].abs().max())
                torch.testing.assert_close(tensor, expected[key], rtol=1e-4, atol=1e-5 * scale, msg=key)
    name = "adapter_model.safetensors" if case == "lora" else "model.safetensors"
    expected, weights = load_file(one.weights(2) / name), load_file(two.weights(2) / name)
    assert weights.keys() == expected.keys()
    for key, tensor in weights.items():
        torch.testing.assert_close(tensor, expected[key], rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize(("count", "case"), RUNS)
def test_they_report_the_metrics_of_one(folders: Folders, count: int, case: str) -> None:
    one, two = (json.loads((folders[n] / case / "rows.json").read_text()) for n in (1, count))
    for row, expected in zip(two, one, strict=True):
        assert row.keys() == expected.keys() > OWN
        for name in expected.keys() - OWN:
            assert row[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name


def test_the_protections_had_something_to_do(folders: Folders) -> None:
    rows = json.loads((folders[1] / "surrogate" / "rows.json").read_text())
    for name in ("is_clip_ratio", "m2po_clip_ratio", "opsm_clipfrac"):
        assert 0 < rows[0][name] < 1, name
    assert rows[0]["stepped"] == 2 and rows[0]["reference_kl"] >= 0 and rows[1]["reference_kl"] > 0


def test_one_process_resumes_what_two_began(folders: Folders, tiny_model_dir, tmp_path) -> None:
    learner = Learner.load(trainer_config(tiny_model_dir, tmp_path), ALONE)
    run = RunFolder(folders[2] / "mixed")
    assert load_checkpoint(run.trainer_checkpoint(1), learner.model, learner.optimizer, ALONE) == 1
    learner.step(2, make_batch(2, size=5))
    expected = load_whole(run.trainer_checkpoint(2), "model")
    for name, parameter in learner.model.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_their_checkpoint_exports_as_the_published_weights(
    folders: Folders, tiny_model_dir, tmp_path, count: int
) -> None:
    run = RunFolder(folders[count] / "mixed")
    source = ModelSource(None, run.trainer_checkpoint(2), None)
    assert export_model(source, tmp_path / "out", base=str(tiny_model_dir)) == "float32"
    expected, exported = (
        load_file(path / "model.safetensors") for path in (run.weights(2), tmp_path / "out")
    )
    assert exported.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in exported.items())


def test_bfloat16_shards_compute_what_one_process_computes(folders, tiny_model_dir, tmp_path) -> None:
    expected = Learner.load(trainer_config(tiny_model_dir, tmp_path, dtype="bfloat16"), ALONE).step(
        1, make_batch(1)
    )
    row = json.loads((folders[2] / "bfloat16.json").read_text())
    assert row["loss"] == pytest.approx(expected["loss"], rel=1e-2)
    assert row["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-2)


def test_every_process_refuses_a_step_that_is_not_finite_in_one(folders: Folders) -> None:
    errors = [(folders[2] / f"refused_{rank}").read_text() for rank in (0, 1)]
    assert errors[0] == errors[1] and "trace 't77'" in errors[0]
