"""Low-rank adapters on a frozen model: what `[trainer.lora]` trains, saves and publishes. The layers are peft's.

A model has up to two of them: the one that is trained, and the frozen one of `reference_kl`, which shares the base.
"""

import copy
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import torch
from peft import LoraConfig, PeftModel, inject_adapter_in_model
from peft.tuners.lora import Linear, LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from braidrl.configs.trainer.lora import LoRAConfig
from braidrl.trainer.model.forward import DeviceMicroBatch, TokenOutputs
from braidrl.trainer.shards import MODEL, PartsReader, trained_parameters
from braidrl.utils.adapter import PREFIX, SETTINGS, TENSORS, adapter_scale, adapter_settings

TRAINED, REFERENCE = "default", "reference"
"""Names of the two adapters, which are part of their parameters' names."""


def add_adapter(model: PreTrainedModel, config: LoRAConfig, base: str, dtype: torch.dtype) -> None:
    """Freeze a model from `load_model` and give it the adapter that is trained, float32.

    A fresh one changes nothing yet: B is 0. `base` is the path of the model, for the adapter's own settings. Weights
    that have an adapter are only ever factors of products in `dtype`, so they are stored in it.

    Raises `ValueError` for an adapter in `config.path` that cannot be trained or is of another model, and for target
    modules that the model does not have or that are not plain linear layers.
    """
    _inject(model, _settings(config, base), TRAINED)
    head = model.get_output_embeddings()
    for name, layer in _layers(model).items():
        if not isinstance(layer, Linear) or type(layer.base_layer) is not nn.Linear or layer is head:
            raise ValueError(
                f"{name} has no adapter that could be trained exactly: it must be a plain linear layer, and not the "
                "output layer; set trainer.lora.target_modules"
            )
        layer.base_layer.weight.data = layer.base_layer.weight.data.to(dtype)
    if config.path is not None:
        load_adapter(model, config.path)


def add_reference(model: PreTrainedModel, start: bool) -> None:
    """Add the frozen adapter of `reference_kl`: the trained one as it is now (`start`), or one that changes nothing."""
    trained = set(trained_parameters(model))
    _inject(model, _trained_settings(model), REFERENCE)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    _activate(model, TRAINED)
    if start:
        _copy_to_reference(model)


class ReferenceAdapter:
    """The frozen policy of `reference_kl` where it is the trained one under another adapter."""

    def __init__(self, policy: nn.Module) -> None:
        self.policy = policy
        self.model = _ReferenceParameters(policy)

    def __call__(self, micro: DeviceMicroBatch) -> TokenOutputs:
        _activate(self.policy, REFERENCE)
        try:
            return self.policy(micro)
        finally:
            _activate(self.policy, TRAINED)

    def copy_(self, policy: nn.Module) -> None:
        """Take the weights of the trained adapter."""
        if isinstance(policy, FSDPModule):
            policy.reshard()  # a forward without backward leaves the outermost parameters whole
        _copy_to_reference(policy)


class _ReferenceParameters(nn.Module):
    """The frozen adapter's parameters, under the names of those that are trained."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def named_parameters(self, *args: object, **kwargs: object) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in self.policy.model.named_parameters():  # type: ignore[union-attr]
            if f".{REFERENCE}." in name:
                yield name.replace(f".{REFERENCE}.", f".{TRAINED}."), parameter


def save_adapter(model: PreTrainedModel, state: dict[str, Tensor], folder: Path) -> None:
    """Write a peft folder. `state` holds the trained parameters, whole, by their names in the model."""
    folder.mkdir(parents=True, exist_ok=True)
    save_settings(model, folder)
    tensors = {_file_name(name): tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / TENSORS, {"format": "pt"})


def save_settings(model: PreTrainedModel, folder: Path) -> None:
    """Write what the weights of an adapter do not say of it, as peft spells it."""
    settings = _trained_settings(model)
    settings.inference_mode = True
    if not isinstance(settings.target_modules, str):  # a pattern
        settings.target_modules = sorted(settings.target_modules or ())
    settings.save_pretrained(str(folder))


def check_settings(model: PreTrainedModel, folder: Path) -> None:
    """Raise `ValueError` where weights in `folder` belong to an adapter with another scale: they would be another
    policy."""
    saved = adapter_scale(adapter_settings(folder))
    scales = {layer.scaling[TRAINED] for layer in _layers(model).values()}
    if scales != {saved}:
        raise ValueError(
            f"{folder / SETTINGS}: the adapter is scaled by {saved:g}, that of the run by {max(scales):g}; set rank "
            "and alpha of trainer.lora to what they were"
        )


@torch.no_grad()
def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Copy the tensors of a peft folder into the adapter that is trained. Raises `ValueError` where they do not fit."""
    tensors = load_file(folder / TENSORS)
    wanted = {_file_name(name): parameter for name, parameter in trained_parameters(model).items()}
    unlike = [
        name
        for name in sorted(tensors.keys() | wanted.keys())
        if name not in tensors or name not in wanted or tensors[name].shape != wanted[name].shape
    ]
    if unlike:
        raise ValueError(
            f"the adapter in {folder} is of another model: {len(unlike)} of its tensors are missing, unknown or of "
            f"another shape ({', '.join(unlike[:3])}); set model.path to its base"
        )
    for name, parameter in wanted.items():
        parameter.copy_(tensors[name])


def merged(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """A plain model with the adapter of a peft folder in its own weights. Raises `ValueError` where it has none that
    could be trained here."""
    adapter_settings(folder)
    return PeftModel.from_pretrained(model, str(folder)).merge_and_unload()


def adapter_of_checkpoint(half: Path, folder: Path) -> None:
    """Write the trainer's half of a checkpoint as a peft folder."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(half / SETTINGS, folder / SETTINGS)
    with PartsReader(half, MODEL) as parts:
        tensors = {_file_name(name): parts.read(name).contiguous() for name in parts.names()}
    save_file(tensors, folder / TENSORS, {"format": "pt"})


def _settings(config: LoRAConfig, base: str) -> LoraConfig:
    base = str(Path(base).resolve()) if Path(base).is_dir() else base
    if config.path is None:
        return LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha or 2 * config.rank,  # type: ignore[arg-type]
            target_modules=config.target_modules or "all-linear",
            task_type="CAUSAL_LM",
            base_model_name_or_path=base,
        )
    found = adapter_settings(config.path)
    if found["r"] != config.rank:
        raise ValueError(
            f"trainer.lora.rank is {config.rank}, but the adapter in {config.path} has rank {found['r']}; set it so"
        )
    settings = LoraConfig.from_pretrained(str(config.path))
    settings.base_model_name_or_path, settings.inference_mode = base, False
    settings.lora_dropout, settings.init_lora_weights = 0.0, True
    return settings


def _trained_settings(model: PreTrainedModel) -> LoraConfig:
    """A copy."""
    return cast(LoraConfig, copy.deepcopy(model.peft_config[TRAINED]))


def _inject(model: PreTrainedModel, settings: LoraConfig, name: str) -> None:
    wanted = settings.target_modules
    modules = [module for module, _ in model.named_modules()]
    if isinstance(wanted, list | set):
        for target in wanted:
            if not any(module == target or module.endswith(f".{target}") for module in modules):
                raise ValueError(
                    f"trainer.lora.target_modules: {type(model).__name__} has no module {target}; its linear layers "
                    f"are {', '.join(_linear_names(model))}"
                )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")
        inject_adapter_in_model(settings, model, name)


def _linear_names(model: nn.Module) -> list[str]:
    return sorted({name.rsplit(".", 1)[-1] for name, m in model.named_modules() if isinstance(m, nn.Linear)})


def _layers(model: nn.Module) -> dict[str, LoraLayer]:
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def _activate(model: nn.Module, name: str) -> None:
    """peft's own switch would turn `requires_grad` of parameters, which sharded ones do not bear."""
    for layer in _layers(model).values():
        layer._active_adapter = [name]


@torch.no_grad()
def _copy_to_reference(model: nn.Module) -> None:
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if f".{REFERENCE}." in name:
            parameter.copy_(parameters[name.replace(f".{REFERENCE}.", f".{TRAINED}.")])


def _file_name(parameter: str) -> str:
    return PREFIX + parameter.replace(f".{TRAINED}.", ".")
