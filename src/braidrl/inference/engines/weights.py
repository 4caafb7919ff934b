"""In-place weight updates. Everything is checked before any weight changes."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from braidrl.inference.engines.adapter import Base, read_adapter
from braidrl.inference.engines.packed_linear import pack_linears
from braidrl.transport.delta import read_delta
from braidrl.transport.weights import base_of, bases_of
from braidrl.utils.adapter import is_adapter

LISTED = 3
"""Maximum number of tensor names of each kind in an error message."""


class WeightsError(ValueError):
    """Raised for a weights folder that does not fit the served model."""


class ServedWeights:
    """Weights of a served model, updated from published folders."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.base = Base()
        self.folder: Path | None = None
        """Folder of the current weights; None: those loaded at the start."""

    def update(self, path: Path) -> None:
        """Apply a published folder: a whole model, an adapter, or a delta.

        An adapter is applied to the model as it was before any adapter. A delta is applied after the deltas that
        precede it, starting from the current weights or from a whole model. Raises `WeightsError` if a folder does not
        fit; the weights are then those before that folder.
        """
        try:
            for folder in self._chain(path):
                self._apply(folder)
                self.folder = folder
        except WeightsError:
            raise
        except (ValueError, OSError) as error:
            raise WeightsError(str(error)) from error
        finally:
            pack_linears(self.model)

    def _chain(self, path: Path) -> list[Path]:
        """Return the folders to apply in order: missing bases of `path`, then `path`."""
        chain = [path]
        for base in bases_of(path):
            if base == self.folder:
                break
            chain.append(base)
        return chain[::-1]

    @torch.no_grad()
    def _apply(self, folder: Path) -> None:
        state = self.model.state_dict()
        if is_adapter(folder):
            self.base.merge(read_adapter(folder, state), state)
        elif base_of(folder) is not None:
            for change in read_delta(folder, state):
                change.apply(state[change.name])
        else:
            for name, tensor in read_weights(folder, self.model).items():
                state[name].copy_(tensor)
            self.base.forget()


def read_weights(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """Read the tensors of all safetensors files of a Hugging Face folder and check them against `model`.

    A tied parameter may be stored under any or all of its names. Raises `WeightsError` for a folder without weights,
    an unreadable file, missing, unknown or mis-shaped tensors, and tied names with different values.
    """
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise WeightsError(f"no *.safetensors in {path}; a folder of published weights is required")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                tensors.update({name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"cannot read {file}: {error}") from error
    _check(path, tensors, model.state_dict())
    return tensors


def _check(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    unknown = [name for name in tensors if name not in state]
    shapes = [
        f"{name} {list(tensors[name].shape)} instead of {list(state[name].shape)}"
        for name in tensors
        if name in state and tensors[name].shape != state[name].shape
    ]
    groups: dict[tuple[int, torch.Size], list[str]] = {}  # names by storage: tied parameters share it
    for name, tensor in state.items():
        groups.setdefault((tensor.data_ptr(), tensor.shape), []).append(name)
    missing, unequal = [], []
    for names in groups.values():
        found = [name for name in names if name in tensors]
        if not found:
            missing.append(" = ".join(names))
        elif any(not torch.equal(tensors[found[0]], tensors[name]) for name in found[1:]):
            unequal.append(" = ".join(found))
    problems = {
        "missing": missing,
        "unknown": unknown,
        "of another shape": shapes,
        "tied but different": unequal,
    }
    if any(problems.values()):
        details = "; ".join(
            f"{len(names)} {kind}: {_listed(names)}" for kind, names in problems.items() if names
        )
        raise WeightsError(
            f"{path} does not fit the served model ({details}); the current weights were not changed"
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:LISTED]) + (", ..." if len(names) > LISTED else "")
