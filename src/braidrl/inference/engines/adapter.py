"""Low-rank adapters merged into the served weights. Each is merged into the base weights, not into its predecessor."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from braidrl.utils.adapter import PREFIX, TENSORS, adapter_scale, adapter_settings


@dataclass(frozen=True)
class Adapter:
    """Low-rank update W + scale * B A of the named weights."""

    scale: float
    factors: dict[str, tuple[Tensor, Tensor]]
    """Factors B [out, rank] and A [rank, in] of each weight [out, in]."""


def read_adapter(folder: Path, state: Mapping[str, Tensor]) -> Adapter:
    """Read a peft folder and check it against the weights of the served model.

    Raises `ValueError` for an unsupported kind of adapter, an unreadable file, and factors that do not fit.
    """
    scale = adapter_scale(adapter_settings(folder))
    try:
        tensors = load_file(folder / TENSORS)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"cannot read {folder / TENSORS}: {error}") from error
    parts: dict[str, dict[str, Tensor]] = {}
    unknown = []
    for name, tensor in tensors.items():
        module, _, part = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        if part not in ("lora_A", "lora_B") or f"{module}.weight" not in state:
            unknown.append(name)
        parts.setdefault(f"{module}.weight", {})[part] = tensor
    unfit = [name for name, pair in parts.items() if name in state and not _fits(pair, state[name])]
    if unknown or unfit or not parts:
        examples = ", ".join([*unknown, *unfit][:3]) or "it is empty"
        raise ValueError(
            f"the adapter in {folder} does not fit the served model ({len(unknown)} unknown tensors, {len(unfit)} "
            f"weights of another shape: {examples}); the current weights were not changed"
        )
    return Adapter(scale, {name: (pair["lora_B"], pair["lora_A"]) for name, pair in parts.items()})


def _fits(pair: Mapping[str, Tensor], weight: Tensor) -> bool:
    a, b = pair.get("lora_A"), pair.get("lora_B")
    if a is None or b is None or a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        return False
    return (b.shape[0], a.shape[1]) == tuple(weight.shape)


class Base:
    """Base weights of adapters: copies of the weights that the current adapter changes, made before the merge."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    @torch.no_grad()
    def merge(self, adapter: Adapter, state: Mapping[str, Tensor]) -> None:
        """Set the weights in `state` to base plus adapter, replacing any previously merged adapter.

        The sum is computed in float32 and rounded once to the served dtype.
        """
        for name in self.kept.keys() - adapter.factors.keys():
            state[name].copy_(self.kept.pop(name))
        for name, (b, a) in adapter.factors.items():
            base = self.kept.setdefault(name, state[name].clone())
            state[name].copy_(torch.addmm(base.float(), b.float(), a.float(), alpha=adapter.scale))

    def forget(self) -> None:
        """Discard the copies after the base model itself was replaced."""
        self.kept.clear()
