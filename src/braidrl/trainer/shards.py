"""Named tensors on disk that several processes wrote, each its rows, without pickle and without talking.

    NAME.safetensors                     one writer: an ordinary safetensors file
    NAME-00001-of-00004.safetensors ...  several: each has the rows that it held, and its header (`__metadata__`) says
                                         for each of these tensors "FIRST/TOTAL": which row comes first, of how many

Any number of processes may read them again: each asks for the rows that it holds now, whoever wrote them.
"""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from braidrl.trainer.parallel import Parallel, Rows, rows_of
from braidrl.utils.publish import sync

MODEL = "model"
"""Name of the weights of what is trained, in a checkpoint."""
PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")


def save_parts(folder: Path, name: str, tensors: Mapping[str, Rows], parallel: Parallel) -> None:
    """Write what this process holds of `tensors` into `folder`; every process calls it. Whole tensors are written once,
    and so is each row where there are several copies."""
    if parallel.rank >= parallel.writers:
        return
    several = parallel.writers > 1
    mine = {key: rows for key, rows in tensors.items() if parallel.leads or (rows.total and len(rows.local))}
    file = f"{name}-{parallel.rank + 1:05d}-of-{parallel.writers:05d}" if several else name
    places = {key: f"{rows.start}/{rows.total}" for key, rows in mine.items() if several and rows.total}
    path = folder / f"{file}.safetensors"
    # an empty header without tensors is not valid JSON
    save_file(
        {key: rows.local.detach().cpu().contiguous() for key, rows in mine.items()}, path, places or None
    )
    sync(path)


class PartsReader:
    """The tensors `name` of a folder, a few rows at a time. A context manager: it keeps the files open."""

    def __init__(self, folder: Path, name: str) -> None:
        """Raises `FileNotFoundError` where there are none, and `ValueError` where a writer's file is missing."""
        self.place = folder / f"{name}.safetensors"
        self._files = ExitStack()
        self._found: dict[str, list[tuple[int, Any]]] = {}
        self._totals: dict[str, int | None] = {}
        for path in find_parts(folder, name):
            file = self._files.enter_context(safe_open(path, "pt"))
            places = file.metadata() or {}
            for key in file.keys():  # noqa: SIM118 (not a dict)
                start, total = map(int, places[key].split("/")) if key in places else (0, None)
                self._found.setdefault(key, []).append((start, file))
                self._totals[key] = total

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()

    def names(self) -> set[str]:
        """Names of all stored tensors."""
        return set(self._found)

    def shape(self, name: str) -> list[int]:
        """Shape of the whole tensor."""
        shape = self._found[name][0][1].get_slice(name).get_shape()
        total = self._totals[name]
        return shape if total is None else [total, *shape[1:]]

    def read(self, name: str, start: int = 0, count: int | None = None) -> torch.Tensor:
        """Rows `start` to `start + count` of a tensor, on the CPU; count None: the whole tensor.

        Raises `ValueError` where some of them are missing.
        """
        if count is None:
            shape = self.shape(name)
            if not shape:
                return self._found[name][0][1].get_tensor(name)
            count = shape[0]
        pieces, row, stop = [], start, start + count
        for first, file in sorted(self._found[name], key=lambda found: found[0]):
            piece = file.get_slice(name)
            low, high = max(row, first), min(stop, first + piece.get_shape()[0])
            if low < high and low == row:
                pieces.append(piece[low - first : high - first])
                row = high
        if row != stop:
            raise ValueError(
                f"{self.place}: rows {start} to {stop} of {name} are not all there; copy the whole checkpoint again"
            )
        if not pieces:  # no rows of it, but its other dimensions
            return self._found[name][0][1].get_slice(name)[:0]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def find_parts(folder: Path, name: str) -> list[Path]:
    """The files of `name` in `folder`, of one writer or of several.

    Raises `FileNotFoundError` where there are none, and `ValueError` where a writer's file is missing.
    """
    whole = folder / f"{name}.safetensors"
    if whole.is_file():
        return [whole]
    parts = sorted(path for path in folder.glob(f"{name}-*.safetensors") if PART.fullmatch(path.name))
    if not parts:
        raise FileNotFoundError(
            f"{folder} has neither {whole.name} nor parts of it ({name}-00001-of-...); it is no checkpoint of the "
            "trainer"
        )
    required = int(PART.fullmatch(parts[0].name)["count"])  # type: ignore[index]
    if len(parts) != required:
        raise ValueError(
            f"{folder} has {len(parts)} parts of {name}, required are {required}; copy the whole checkpoint again"
        )
    return parts


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Trained parameters, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def load_weights(
    folder: Path, model: nn.Module, name: str = MODEL, trained: dict[str, nn.Parameter] | None = None
) -> None:
    """Copy the weights `name` of a checkpoint into a model's trainable parameters, or those called as in `trained`;
    each process reads what it holds of them.

    Raises `ValueError` when they are another model's.
    """
    parameters = dict(model.named_parameters())
    wanted = {key: parameters[key] for key in trained or trained_parameters(model)}
    with PartsReader(folder, name) as parts, torch.no_grad():
        _check_shapes(parts, wanted)
        for key, parameter in wanted.items():
            rows_of(parameter).local.copy_(read_like(parts, key, parameter))


def read_like(parts: PartsReader, name: str, parameter: nn.Parameter) -> torch.Tensor:
    """The rows of a tensor that this process holds of the parameter."""
    rows = rows_of(parameter)
    return parts.read(name) if rows.total is None else parts.read(name, rows.start, len(rows.local))


def _check_shapes(parts: PartsReader, parameters: dict[str, nn.Parameter]) -> None:
    remedy = "resume with the model.path that the run was started with"
    saved, required = parts.names(), set(parameters)
    if saved != required:
        raise ValueError(
            f"{parts.place} belongs to another model: missing {sorted(required - saved)[:3]}, "
            f"unknown {sorted(saved - required)[:3]}; {remedy}"
        )
    for name, parameter in parameters.items():
        if (shape := parts.shape(name)) != list(parameter.shape):
            raise ValueError(
                f"{parts.place} belongs to another model: {name} has shape {shape}, required is "
                f"{list(parameter.shape)}; {remedy}"
            )
