"""The trainer's half of a checkpoint: everything that the next step depends on, without pickle.

    trainer/model.safetensors      float32 master weights, by parameter name
    trainer/optimizer.safetensors  AdamW state, `exp_avg/NAME`, `exp_avg_sq/NAME`, `step/NAME`
    trainer/reference.safetensors  weights of the `reference_kl` model, if it moves
    trainer/rng.safetensors        random state of every process, `cpu` u8[P, N] (and `cuda`)
    trainer/progress.json          {"step": n}; the learning-rate schedule is a function of it

Shards are saved whole, so that a run may resume on another number of processes.
"""

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from braidrl.trainer.parallel import Parallel, gathered, sharded_like
from braidrl.utils.publish import publish_folder

MODEL, OPTIMIZER, REFERENCE, RNG, PROGRESS = (
    "model.safetensors",
    "optimizer.safetensors",
    "reference.safetensors",
    "rng.safetensors",
    "progress.json",
)


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    parallel: Parallel,
    reference: nn.Module | None = None,
) -> None:
    """Publish the trainer's state after `step` as `folder`. Every process calls it; the first writes.

    `reference` is the model of `reference_kl` where it moves, so that its path no longer says what it is.
    """
    weights = _gather(dict(model.named_parameters()), parallel)
    moved = None if reference is None else _gather(dict(reference.named_parameters()), parallel)
    state = _gather(_optimizer_tensors(model, optimizer), parallel)
    rng = _gather_rng(parallel)
    if parallel.leads:
        with publish_folder(folder) as staging:
            save_file(weights, staging / MODEL)
            save_file(state, staging / OPTIMIZER)
            if moved is not None:
                save_file(moved, staging / REFERENCE)
            save_file(rng, staging / RNG)
            (staging / PROGRESS).write_text(json.dumps({"step": step}))
    parallel.barrier()


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    parallel: Parallel,
    reference: nn.Module | None = None,
) -> int:
    """Restore the state that `save_checkpoint` saved, exactly; returns its step.

    Raises `FileNotFoundError` without a checkpoint and `ValueError` when it belongs to another model, or has no
    moving reference while the run has one.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"no trainer checkpoint at {folder}; resume from a step that has one, or start anew"
        )
    parameters = dict(model.named_parameters())
    load_weights(folder / MODEL, model)
    if reference is not None:
        if not (folder / REFERENCE).is_file():
            raise ValueError(
                f"{folder} has no {REFERENCE}, but trainer.reference_kl.update_interval moves a reference; resume "
                f"with the reference_kl that the run was started with"
            )
        load_weights(folder / REFERENCE, reference)
    with safe_open(folder / OPTIMIZER, "pt") as file:
        for key in file.keys():  # noqa: SIM118 (not a dict)
            field, name = key.split("/", 1)
            parameter, tensor = parameters[name], file.get_tensor(key)
            # the fused optimizer keeps its scalar step counters beside the parameters, not sharded
            placed = tensor.to(parameter.device) if field == "step" else sharded_like(tensor, parameter)
            optimizer.state[parameter][field] = placed
    _restore_rng(load_file(folder / RNG), parallel)
    return json.loads((folder / PROGRESS).read_text())["step"]


def load_weights(path: Path, model: nn.Module) -> None:
    """Copy the whole weights of a checkpoint's file into a model, sharded or not.

    Raises `ValueError` when they are another model's.
    """
    parameters = dict(model.named_parameters())
    with safe_open(path, "pt") as file, torch.no_grad():
        _check_shapes(path, file, parameters)
        for name, parameter in parameters.items():
            parameter.copy_(sharded_like(file.get_tensor(name), parameter))


def _gather(tensors: dict[str, torch.Tensor], parallel: Parallel) -> dict[str, torch.Tensor]:
    """Whole tensors on the CPU of the first process, one at a time; the others only take part."""
    whole = {}
    for name, tensor in tensors.items():
        full = gathered(tensor.detach())
        if parallel.leads:
            whole[name] = full.cpu().contiguous()
    return whole


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    # optimizer.state is a defaultdict: `get` does not make entries for parameters that never took a step
    return {
        f"{field}/{name}": tensor
        for name, parameter in model.named_parameters()
        for field, tensor in optimizer.state.get(parameter, {}).items()
    }


def _gather_rng(parallel: Parallel) -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if parallel.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(parallel.device)
    for name, state in states.items():
        rows = [state.to(parallel.device)]
        if parallel.world_size > 1:
            mine, rows = rows[0], [torch.empty_like(rows[0]) for _ in range(parallel.world_size)]
            dist.all_gather(rows, mine)
        states[name] = torch.stack(rows).cpu()
    return states


def _restore_rng(states: dict[str, torch.Tensor], parallel: Parallel) -> None:
    """Restore this process's random state; a process that the saved run did not have keeps its own."""
    if parallel.rank >= len(states["cpu"]):
        return
    # torch reads a generator's state from the start of its storage, so a row must be a copy
    torch.set_rng_state(states["cpu"][parallel.rank].clone())
    if "cuda" in states and parallel.device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"][parallel.rank].clone(), parallel.device)


def _check_shapes(path: Path, file: Any, parameters: dict[str, nn.Parameter]) -> None:
    remedy = "resume with the model.path that the run was started with"
    saved, required = set(file.keys()), set(parameters)
    if saved != required:
        raise ValueError(
            f"{path} belongs to another model: missing {sorted(required - saved)[:3]}, "
            f"unknown {sorted(saved - required)[:3]}; {remedy}"
        )
    for name, parameter in parameters.items():
        shape = file.get_slice(name).get_shape()
        if shape != list(parameter.shape):
            raise ValueError(
                f"{path} belongs to another model: {name} has shape {shape}, required is "
                f"{list(parameter.shape)}; {remedy}"
            )
