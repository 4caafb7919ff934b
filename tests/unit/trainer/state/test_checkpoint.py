"""Checkpoints: exact, without pickle, and complete whenever the process is killed."""

import os
import random
import signal
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from braidrl.configs.trainer.config import CheckpointConfig
from braidrl.configs.trainer.optim import OptimConfig
from braidrl.trainer.optim import make_optimizer
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.state.checkpoint import load_checkpoint, save_checkpoint
from braidrl.transport.weights import publish_weights
from braidrl.utils.publish import publish_bytes
from braidrl.utils.retention import prune_checkpoints
from braidrl.utils.run_folder import RunFolder

ALONE = Parallel(0, 1, torch.device("cpu"))


def make(width: int = 4) -> tuple[nn.Module, torch.optim.AdamW]:
    model = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))
    return model, make_optimizer(model, OptimConfig(lr=0.1, weight_decay=0.1))


def learn(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 3)).square().mean().backward()
    optimizer.step()


def test_a_restored_run_continues_bit_by_bit(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, optimizer = make()
    learn(model, optimizer)
    save_checkpoint(tmp_path / "trainer", model, optimizer, 1, ALONE)
    learn(model, optimizer)

    torch.manual_seed(2)
    restored, its_optimizer = make()
    assert load_checkpoint(tmp_path / "trainer", restored, its_optimizer, ALONE) == 1
    learn(restored, its_optimizer)
    for parameter, expected in zip(restored.parameters(), model.parameters(), strict=True):
        assert torch.equal(parameter, expected)
        for field, value in optimizer.state[expected].items():
            assert torch.equal(its_optimizer.state[parameter][field], value)
    assert {path.suffix for path in (tmp_path / "trainer").iterdir()} == {".safetensors", ".json"}


def test_an_optimizer_that_never_stepped_is_restored_as_that(tmp_path: Path) -> None:
    model, optimizer = make()
    save_checkpoint(tmp_path / "trainer", model, optimizer, 1, ALONE)
    restored, its_optimizer = make()
    load_checkpoint(tmp_path / "trainer", restored, its_optimizer, ALONE)
    assert not its_optimizer.state
    learn(restored, its_optimizer)


def test_the_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "trainer", *make(), 1, ALONE)
    other = nn.Linear(3, 1)
    with pytest.raises(ValueError, match=r"belongs to another model.*missing \['bias', 'weight'\]"):
        load_checkpoint(tmp_path / "trainer", other, make_optimizer(other, OptimConfig()), ALONE)
    with pytest.raises(ValueError, match=r"0\.weight has shape \[4, 3\], required is \[5, 3\]"):
        load_checkpoint(tmp_path / "trainer", *make(width=5), ALONE)
    with pytest.raises(FileNotFoundError, match="no trainer checkpoint"):
        load_checkpoint(tmp_path / "nothing", *make(), ALONE)


def fill(step: int, folder: Path) -> None:
    (folder / "model").write_text(f"{step} " * 300_000)


def publish_forever(root: Path, first: int) -> None:
    """Publish checkpoints and weights filled with the number of their step, until this process is killed."""
    run, step = RunFolder(root), first
    model = nn.Linear(512, 512)
    optimizer = make_optimizer(model, OptimConfig())
    while True:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
                optimizer.state[parameter] = {"exp_avg": torch.full_like(parameter, step)}
        save_checkpoint(run.trainer_checkpoint(step), model, optimizer, step, ALONE)
        publish_bytes(run.orchestrator_checkpoint(step), str(step).encode() * 1000)
        publish_weights(run, step, partial(fill, step))
        prune_checkpoints(run, CheckpointConfig(keep_last=2))
        step += 1


def test_a_kill_at_any_moment_leaves_the_last_complete_checkpoint_and_weights(tmp_path: Path) -> None:
    run, rng = RunFolder(tmp_path), random.Random(0)
    context = get_context("forkserver")
    context.set_forkserver_preload(
        ["braidrl.trainer.state.checkpoint", "braidrl.transport.weights", "pytest"]
    )
    halves = 0
    for _ in range(5):
        newest = max(run.published("weights"), default=0)
        first = max([newest, *run.published("checkpoints")]) + 1
        child = context.Process(target=publish_forever, args=(tmp_path, first))
        child.start()
        assert child.pid is not None
        wait_for_weights(run, first)
        time.sleep(rng.uniform(0, 0.06))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        halves += len([*tmp_path.glob("checkpoints/**/*.tmp"), *tmp_path.glob("weights/*.tmp")])
        check_whole(run, first)
    assert halves > 0, "no kill hit a half-written folder, so that nothing was tested"


def wait_for_weights(run: RunFolder, version: int) -> None:
    deadline = time.monotonic() + 60
    while version not in run.published("weights"):
        assert time.monotonic() < deadline, f"the child did not publish version {version} within 60 s"
        time.sleep(0.002)


def check_whole(run: RunFolder, at_least: int) -> None:
    newest = run.checkpoints()[-1]
    assert newest >= at_least
    model = nn.Linear(512, 512)
    optimizer = make_optimizer(model, OptimConfig())
    assert load_checkpoint(run.trainer_checkpoint(newest), model, optimizer, ALONE) == newest
    assert all(bool((parameter == newest).all()) for parameter in model.parameters())
    assert all(bool((state["exp_avg"] == newest).all()) for state in optimizer.state.values())
    for step in run.checkpoints():
        assert run.orchestrator_checkpoint(step).read_bytes() == str(step).encode() * 1000
        assert bool((load_file(run.trainer_checkpoint(step) / "model.safetensors")["weight"] == step).all())
    for version in run.published("weights"):
        assert (run.weights(version) / "model").read_text() == f"{version} " * 300_000
