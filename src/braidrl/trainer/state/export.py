"""Any policy of a run as an ordinary Hugging Face folder, or an adapter as an ordinary peft folder."""

import json
import shutil
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from braidrl.trainer.model.loading import save_model
from braidrl.trainer.shards import load_weights
from braidrl.utils.adapter import SETTINGS, TENSORS, adapter_settings
from braidrl.utils.model_source import ModelSource
from braidrl.utils.publish import publish_folder


def export_model(
    source: ModelSource,
    target: Path,
    dtype: str | None = None,
    base: str | None = None,
    trust_remote_code: bool = False,
) -> str:
    """Publish `source` as the folder `target`: config, safetensors, tokenizer, generation config.

    An adapter is merged into its base model in float32.

    Args:
        dtype: Dtype of the weights, such as `float32`. None: the dtype that the run publishes, or that of the folder.
        base: Folder or hub id for the config and tokenizer of a checkpoint, or for the base weights of an adapter.
            None: the model of the run.

    Returns:
        The dtype of the written weights.

    Raises:
        FileExistsError: If `target` exists.
        FileNotFoundError: If the architecture of a checkpoint is unknown.
        ValueError: If the checkpoint has a different architecture from `base`.
    """
    if target.exists():
        raise FileExistsError(f"{target} already exists; name a new folder")
    settings = run_settings(source).get("model", {})
    dtype = dtype or _published_dtype(source, settings)
    origin = str(base or _origin(source) or settings.get("path") or "")
    if not origin:
        raise FileNotFoundError(
            f"{source.checkpoint} holds weights alone, and neither the published weights nor the config of its run are "
            "there; name the model that it was trained from"
        )
    trust = trust_remote_code or settings.get("trust_remote_code", False)
    model = _load(source, origin, getattr(torch, dtype), trust)
    with publish_folder(target) as folder:
        save_model(model, origin, folder, getattr(torch, dtype))
    return dtype


def export_adapter(source: ModelSource, target: Path, base: str | None = None) -> None:
    """Publish the adapter that `source` is as the peft folder `target`, float32 as it was trained.

    `base` is what it says to belong to; None: as it says already. Raises `FileExistsError`, and `ValueError` where
    `source` is a whole model.
    """
    if target.exists():
        raise FileExistsError(f"{target} already exists; name a new folder")
    if source.adapter is None:
        raise ValueError(f"{source.checkpoint or source.weights} is a whole model, not an adapter")
    with publish_folder(target) as folder:
        _write_adapter(source, folder)
        if base is not None:
            settings = json.loads((folder / SETTINGS).read_text()) | {"base_model_name_or_path": base}
            (folder / SETTINGS).write_text(json.dumps(settings, indent=2))


def run_settings(source: ModelSource) -> dict[str, Any]:
    """Trainer config of the run that made a policy, empty without a run."""
    path = source.run.configs / "trainer.toml" if source.run else None
    return tomllib.loads(path.read_text()) if path is not None and path.is_file() else {}


def _origin(source: ModelSource) -> str | Path | None:
    """Folder or id with the config, and with all weights that the policy itself does not have."""
    return (
        source.weights
        if source.adapter is None
        else adapter_settings(source.adapter)["base_model_name_or_path"]
    )


def _load(source: ModelSource, origin: str, dtype: torch.dtype, trust_remote_code: bool) -> PreTrainedModel:
    """The policy: what `origin` holds, with what the policy brings itself, in float32 where that is computed with."""
    exact = source.checkpoint is not None or source.adapter is not None
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        origin, dtype=torch.float32 if exact else dtype, trust_remote_code=trust_remote_code
    )
    if source.adapter is not None:
        return _merged(model, source)
    if source.checkpoint is not None:
        load_weights(source.checkpoint, model)
    return model


def _merged(model: PreTrainedModel, source: ModelSource) -> PreTrainedModel:
    from braidrl.trainer.model.lora import merged  # only here: peft is an extra

    with tempfile.TemporaryDirectory() as folder:
        _write_adapter(source, Path(folder))
        return merged(model, Path(folder))


def _write_adapter(source: ModelSource, folder: Path) -> None:
    if source.weights is not None:
        for name in (SETTINGS, TENSORS):
            shutil.copy(source.weights / name, folder / name)
    elif source.checkpoint is not None:
        from braidrl.trainer.model.lora import adapter_of_checkpoint

        adapter_of_checkpoint(source.checkpoint, folder)


def _published_dtype(source: ModelSource, settings: dict[str, Any]) -> str:
    if source.weights is None or source.adapter is not None:
        return settings.get("dtype", "float32")
    config = json.loads((source.weights / "config.json").read_text())
    return config.get("dtype") or config.get("torch_dtype") or "float32"
