"""Tensors written by several processes: reading of any rows, and errors for incomplete files."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from braidrl.configs.trainer.optim import OptimConfig
from braidrl.trainer.optim import make_optimizer
from braidrl.trainer.parallel import Parallel, Rows, data_parallel
from braidrl.trainer.shards import PartsReader, find_parts, load_weights, save_parts
from braidrl.trainer.state import checkpoint
from braidrl.trainer.state.checkpoint import load_checkpoint, save_checkpoint
from braidrl.utils.model_source import find_model
from braidrl.utils.run_folder import RunFolder
from tests.support.ranks import run_ranks

CPU = torch.device("cpu")
WHOLE = {"matrix": torch.arange(15.0).reshape(5, 3), "vector": torch.arange(2.0), "count": torch.tensor(7.0)}


def write(folder: Path, writers: int) -> None:
    """Write as `writers` processes would: rows are split like in torch.chunk, scalars are not split."""
    folder.mkdir(exist_ok=True)
    for rank in range(writers):
        rows = {"count": Rows(WHOLE["count"], 0, None)}
        for name in ("matrix", "vector"):
            each = -(-len(WHOLE[name]) // writers)
            start = min(rank * each, len(WHOLE[name]))
            rows[name] = Rows(WHOLE[name][start : start + each], start, len(WHOLE[name]))
        save_parts(folder, "model", rows, Parallel(rank, writers, CPU))


@pytest.mark.parametrize("writers", [1, 2, 3, 4])
def test_any_rows_are_read_again_whoever_wrote_them(tmp_path: Path, writers: int) -> None:
    write(tmp_path, writers)
    with PartsReader(tmp_path, "model") as parts:
        assert parts.names() == WHOLE.keys()
        for name, tensor in WHOLE.items():
            assert parts.shape(name) == list(tensor.shape)
            assert torch.equal(parts.read(name), tensor)
        for start in range(6):
            for stop in range(start, 6):
                rows = parts.read("matrix", start, stop - start)
                assert torch.equal(rows, WHOLE["matrix"][start:stop]) and rows.shape == (stop - start, 3)


def test_one_writer_leaves_an_ordinary_file(tmp_path: Path) -> None:
    write(tmp_path, 1)
    assert load_file(tmp_path / "model.safetensors").keys() == WHOLE.keys()


def test_a_part_that_is_missing_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 3)
    first, second, _ = find_parts(tmp_path, "model")
    second.unlink()
    with pytest.raises(ValueError, match="has 2 parts of model, required are 3; copy the whole checkpoint"):
        find_parts(tmp_path, "model")
    second.write_bytes(first.read_bytes())
    with PartsReader(tmp_path, "model") as parts, pytest.raises(ValueError, match="rows 0 to 5 of matrix"):
        parts.read("matrix")
    with pytest.raises(FileNotFoundError, match=r"neither optimizer\.safetensors nor parts"):
        find_parts(tmp_path, "optimizer")


def test_parts_are_a_checkpoint_like_any_other(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    half = run.trainer_checkpoint(3)
    half.mkdir(parents=True)
    write(half, 2)
    (half / "progress.json").write_text('{"step": 3}')
    for path in (run.checkpoint(3), half, run.root):
        source = find_model(path)
        assert (source.checkpoint, source.step) == (half.absolute() if path != run.root else half, 3)


def test_weights_that_do_not_fit_are_refused_by_shape(tmp_path: Path) -> None:
    model = nn.Linear(3, 5, bias=False)
    save_parts(tmp_path, "model", {"weight": Rows(torch.ones(4, 3), 0, 8)}, Parallel(0, 2, CPU))
    save_parts(tmp_path, "model", {"weight": Rows(torch.ones(4, 3), 4, 8)}, Parallel(1, 2, CPU))
    with pytest.raises(ValueError, match=r"weight has shape \[8, 3\], required is \[5, 3\]"):
        load_weights(tmp_path, model)


def tear(folder: Path) -> None:
    """Let the second process fail to write its part."""
    with data_parallel(timeout=20) as parallel:
        model = nn.Linear(3, 5)
        optimizer = make_optimizer(model, OptimConfig())
        save_checkpoint(folder / "good", model, optimizer, 1, parallel)
        if not parallel.leads:

            def full(*_: object) -> None:
                raise OSError("no space left")

            checkpoint.save_parts = full
        save_checkpoint(folder / "torn", model, optimizer, 2, parallel)


def test_a_checkpoint_that_one_process_could_not_write_is_never_there(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"Connection|imed out|no space left"):
        run_ranks(2, tear, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good", "torn.tmp"]
    model = nn.Linear(3, 5)
    assert (
        load_checkpoint(tmp_path / "good", model, make_optimizer(model, OptimConfig()), Parallel(0, 1, CPU))
        == 1
    )


def unequal(folder: Path) -> None:
    with data_parallel(shard_size=2):
        (folder / "entered").touch()


def test_copies_of_unequal_size_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="shard_size = 2 does not divide the 3 processes"):
        run_ranks(3, unequal, tmp_path)
    assert not (tmp_path / "entered").exists()
