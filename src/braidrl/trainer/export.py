"""Any policy of a run as an ordinary Hugging Face folder."""

import json
import tomllib
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from braidrl.trainer.checkpoint import load_weights
from braidrl.trainer.model import save_model
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

    Args:
        dtype: of the weights, `float32` say; None: the type in which the run publishes, or the folder's own.
        base: folder or hub id that config and tokenizer of a checkpoint come from; None: the run's.

    Returns:
        The type that was written.

    Raises:
        FileExistsError: `target` is there already.
        FileNotFoundError: nothing says which architecture a checkpoint is of.
        ValueError: the checkpoint is of another architecture than `base`.
    """
    if target.exists():
        raise FileExistsError(f"{target} is there already; name a new folder")
    settings = run_settings(source).get("model", {})
    dtype = dtype or _published_dtype(source, settings)
    origin = str(base or source.weights or settings.get("path") or "")
    if not origin:
        raise FileNotFoundError(
            f"{source.checkpoint} holds weights alone, and neither the published weights nor the config of its run are "
            "there; name the model that it was trained from"
        )
    loaded = torch.float32 if source.checkpoint else getattr(torch, dtype)
    trust = trust_remote_code or settings.get("trust_remote_code", False)
    model = AutoModelForCausalLM.from_pretrained(origin, dtype=loaded, trust_remote_code=trust)
    if source.checkpoint is not None:
        load_weights(source.checkpoint, model)
    with publish_folder(target) as folder:
        save_model(model, origin, folder, getattr(torch, dtype))
    return dtype


def run_settings(source: ModelSource) -> dict[str, Any]:
    """What the run of a policy was told about its trainer; nothing where no run made it."""
    path = source.run.configs / "trainer.toml" if source.run else None
    return tomllib.loads(path.read_text()) if path is not None and path.is_file() else {}


def _published_dtype(source: ModelSource, settings: dict[str, Any]) -> str:
    if source.weights is None:
        return settings.get("dtype", "float32")
    config = json.loads((source.weights / "config.json").read_text())
    return config.get("dtype") or config.get("torch_dtype") or "float32"
