"""Deltas: a policy version as its exact element-wise difference from another version.

    delta.json          {"base": "step_000004", "checksums": {NAME: crc32, ...}}
    delta.safetensors   NAME.indices i32[n] (i64 in huge tensors) and NAME.values [n] of a changed tensor, flat;
                        NAME of a tensor with so many changes that the whole tensor is smaller

A checksum covers the tensor before the change and the change itself, so that a delta can only be applied to its base.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from braidrl.transport.weights import DELTA

TENSORS = "delta.safetensors"
INDICES, VALUES = ".indices", ".values"
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers to compare elements by: -0 is not 0 here, and NaN equals itself."""


@dataclass(frozen=True)
class TensorDelta:
    """Change of one tensor."""

    name: str
    indices: Tensor | None
    """Flat positions, ascending; None: the whole tensor."""
    values: Tensor

    def checksum(self, base: Tensor) -> int:
        """Checksum of a tensor and its change."""
        parts = (base, self.values) if self.indices is None else (base, self.indices, self.values)
        found = 0
        for part in parts:
            found = zlib.crc32(_bytes(part), found)
        return found

    def apply(self, tensor: Tensor) -> None:
        """Change a contiguous tensor in place."""
        if self.indices is None:
            tensor.copy_(self.values)
        else:
            tensor.view(-1)[self.indices.long()] = self.values


def save_delta(old: Mapping[str, Tensor], new: Mapping[str, Tensor], base: str, folder: Path) -> None:
    """Write the difference from the tensors `old` to `new`, which have the same names, shapes and dtypes, on the CPU.

    `base` is the name of the sibling folder that holds `old`.
    """
    tensors, checksums = {}, {}
    for name, tensor in new.items():
        change = _change(name, old[name], tensor)
        if change is None:
            continue
        checksums[name] = change.checksum(old[name])
        if change.indices is None:
            tensors[name] = change.values
        else:
            tensors |= {name + INDICES: change.indices, name + VALUES: change.values}
    save_file(tensors, folder / TENSORS)
    (folder / DELTA).write_text(json.dumps({"base": base, "checksums": checksums}))


def read_delta(folder: Path, state: Mapping[str, Tensor]) -> list[TensorDelta]:
    """The changes of a delta, checked against the tensors that they are for.

    Raises `ValueError` for an unreadable one, and for one of another base.
    """
    try:
        tensors = load_file(folder / TENSORS)
        checksums = json.loads((folder / DELTA).read_text())["checksums"]
    except (SafetensorError, OSError, json.JSONDecodeError, KeyError) as error:
        raise ValueError(f"cannot read {folder}: {error!r}") from error
    changes = list(_changes(tensors, checksums))
    for change in changes:
        tensor = state.get(change.name)
        if tensor is None or tensor.dtype != change.values.dtype:
            served = "no tensor of that name" if tensor is None else f"{tensor.dtype}"
            raise ValueError(
                f"{folder} changes {change.name} in {change.values.dtype}, but served is {served}"
            )
        if change.checksum(tensor) != checksums[change.name]:
            raise ValueError(
                f"{folder} does not apply to the served weights: the checksum of {change.name} differs; restart the "
                "server, which then loads the newest whole version first"
            )
    return changes


def _changes(tensors: Mapping[str, Tensor], names: Mapping[str, int]) -> Iterator[TensorDelta]:
    for name in names:
        if name in tensors:
            yield TensorDelta(name, None, tensors[name])
        else:
            yield TensorDelta(name, tensors[name + INDICES], tensors[name + VALUES])


def _change(name: str, old: Tensor, new: Tensor) -> TensorDelta | None:
    """None where nothing changed."""
    before, after = (_bits(tensor).view(-1) for tensor in (old, new))
    indices = (before != after).nonzero()[:, 0]
    if not len(indices):
        return None
    if new.numel() <= 1 << 31:
        indices = indices.to(torch.int32)
    if len(indices) * (indices.element_size() + new.element_size()) >= new.numel() * new.element_size():
        return TensorDelta(name, None, new)
    return TensorDelta(name, indices, new.view(-1)[indices.long()])


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(BITS[tensor.element_size()])


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
