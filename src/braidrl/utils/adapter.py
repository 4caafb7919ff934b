"""Settings of low-rank adapters in peft folders, shared by trainer and inference."""

import json
import math
from pathlib import Path
from typing import Any

SETTINGS, TENSORS = "adapter_config.json", "adapter_model.safetensors"

PREFIX = "base_model.model."
"""Prefix of module names in an adapter's tensors: `base_model.model.NAME.lora_A.weight`."""

EXTENSIONS = (
    *("alpha_pattern", "rank_pattern", "modules_to_save", "layer_replication", "target_parameters"),
    *("trainable_token_indices", "alora_invocation_tokens", "fan_in_fan_out", "lora_bias", "arrow_config"),
    *("use_dora", "use_qalora", "use_bdlora", "monteclora_config", "velora_config", "kasa_config"),
)
"""Settings with which an adapter no longer computes W x + scale * B A x."""
PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the weights of the base model unchanged."""


def is_adapter(folder: Path) -> bool:
    """Return True if a folder contains an adapter rather than a whole model."""
    return (folder / SETTINGS).is_file()


def adapter_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a plain LoRA adapter.

    Raises `ValueError` for a folder without a readable adapter and for any other kind of adapter.
    """
    try:
        settings = json.loads((folder / SETTINGS).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(
            f"cannot read an adapter in {folder}: {error}; a peft folder with {SETTINGS} and {TENSORS} is required"
        ) from error
    kind = settings.get("peft_type")
    unsupported = [f"{name} = {settings[name]}" for name in EXTENSIONS if settings.get(name)]
    for name, plain in (("bias", (None, "none")), ("init_lora_weights", PLAIN_STARTS)):
        if settings.get(name) not in plain:
            unsupported.append(f"{name} = {settings[name]!r}")
    if kind != "LORA" or unsupported:
        raise ValueError(
            f"unsupported adapter in {folder}: {', '.join([f'peft_type = {kind!r}', *unsupported])}; only plain LoRA "
            "can be trained and served; merge the adapter into its model (merge_and_unload of peft) and use the merged "
            "model"
        )
    return settings


def adapter_scale(settings: dict[str, Any]) -> float:
    """Return the factor of B A: alpha / rank, or alpha / sqrt(rank) with rank-stabilised LoRA."""
    rank = settings["r"]
    return settings["lora_alpha"] / (math.sqrt(rank) if settings.get("use_rslora") else rank)
