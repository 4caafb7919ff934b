"""The trainer's half of a checkpoint: everything that the next step depends on, without pickle.

    trainer/model.safetensors      float32 master weights of what is trained, by parameter name
    trainer/optimizer.safetensors  AdamW state, `exp_avg/NAME`, `exp_avg_sq/NAME`, `step/NAME`
    trainer/reference.safetensors  the same weights of the `reference_kl` model, if it moves
    trainer/adapter_config.json    the rank and scale of the adapter, if one is trained
    trainer/rng.safetensors        random state of every process, `cpu` u8[P, N] (and `cuda`)
    trainer/progress.json          {"step": n}; the learning-rate schedule is a function of it

Of several processes each writes the rows that it holds, `model-00001-of-00004.safetensors` (`trainer/shards.py`), and
any number of them reads its own again, so that a run may resume on another number of processes.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from braidrl.trainer.optim import place_state
from braidrl.trainer.parallel import Parallel, Rows, rows_of
from braidrl.trainer.shards import (
    MODEL,
    PartsReader,
    find_parts,
    load_weights,
    read_like,
    save_parts,
    trained_parameters,
)
from braidrl.utils.publish import publish_folder, staging_path

OPTIMIZER, REFERENCE = "optimizer", "reference"
RNG, PROGRESS = "rng.safetensors", "progress.json"


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    parallel: Parallel,
    reference: nn.Module | None = None,
) -> None:
    """Publish the trainer's state after `step` as `folder`, when every process, all of which call it, has written.

    `reference` is the model of `reference_kl` where it moves, so that its path no longer says what it is.
    """
    rng = _gather_rng(parallel)
    with _published_by_all(folder, parallel) as staging:
        save_parts(staging, MODEL, _weights(model, model), parallel)
        save_parts(staging, OPTIMIZER, _optimizer_state(model, optimizer), parallel)
        if reference is not None:
            save_parts(staging, REFERENCE, _weights(reference, model), parallel)
        if parallel.leads:
            save_file(rng, staging / RNG)
            if isinstance(model, PreTrainedModel) and hasattr(model, "peft_config"):
                from braidrl.trainer.model.lora import save_settings  # only here: peft is an extra

                save_settings(model, staging)
            (staging / PROGRESS).write_text(json.dumps({"step": step}))


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
            f"no trainer checkpoint at {folder}; resume from a step that has one, or start a new run"
        )
    trained = trained_parameters(model)
    if isinstance(model, PreTrainedModel) and hasattr(model, "peft_config"):
        from braidrl.trainer.model.lora import check_settings

        check_settings(model, folder)
    load_weights(folder, model)
    if reference is not None:
        try:
            find_parts(folder, REFERENCE)
        except FileNotFoundError:
            raise ValueError(
                f"{folder} has no {REFERENCE}.safetensors, but trainer.reference_kl.update_interval moves a "
                "reference; resume with the reference_kl that the run was started with"
            ) from None
        load_weights(folder, reference, REFERENCE, trained)
    with PartsReader(folder, OPTIMIZER) as state:
        for key in sorted(state.names()):
            field, name = key.split("/", 1)
            # a step counter is one number; the rest lies as its parameter does
            local = state.read(key) if field == "step" else read_like(state, key, trained[name])
            place_state(optimizer, trained[name], field, local)
    _restore_rng(load_file(folder / RNG), parallel)
    return json.loads((folder / PROGRESS).read_text())["step"]


def _weights(model: nn.Module, policy: nn.Module) -> dict[str, Rows]:
    """Return the part of `model` that `policy` trains."""
    parameters = dict(model.named_parameters())
    return {name: rows_of(parameters[name]) for name in trained_parameters(policy)}


def _optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Rows]:
    # optimizer.state is a defaultdict: `get` does not make entries for parameters that never took a step
    found = {}
    for name, parameter in trained_parameters(model).items():
        for field, tensor in optimizer.state.get(parameter, {}).items():
            local = rows_of(tensor)
            # state that was offloaded lies as its parameter does, but is an ordinary tensor
            found[f"{field}/{name}"] = (
                local if field == "step" else replace(rows_of(parameter), local=local.local)
            )
    return found


@contextmanager
def _published_by_all(folder: Path, parallel: Parallel) -> Iterator[Path]:
    """`publish_folder`, of which every process fills a part."""
    if not parallel.leads:
        parallel.barrier()
        yield staging_path(folder)
        parallel.barrier()
    else:
        with publish_folder(folder) as staging:
            parallel.barrier()  # it is there
            yield staging
            parallel.barrier()  # all have written
    parallel.barrier()


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
