"""What a peft folder says of its low-rank adapter, as far as more than one room needs it."""

import json
import math
from pathlib import Path
from typing import Any

SETTINGS, TENSORS = "adapter_config.json", "adapter_model.safetensors"

PREFIX = "base_model.model."
"""Before the name of a module in an adapter's tensors: `base_model.model.NAME.lora_A.weight`."""

EXTENSIONS = (
    *("alpha_pattern", "rank_pattern", "modules_to_save", "layer_replication", "target_parameters"),
    *("trainable_token_indices", "alora_invocation_tokens", "fan_in_fan_out", "lora_bias", "arrow_config"),
    *("use_dora", "use_qalora", "use_bdlora", "monteclora_config", "velora_config", "kasa_config"),
)
"""Settings that make an adapter compute something else than W x + scale * B A x."""
PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Ways to initialise an adapter that leave the model's own weights as they are."""


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter, and not a whole model."""
    return (folder / SETTINGS).is_file()


def adapter_settings(folder: Path) -> dict[str, Any]:
    """The settings of a plain LoRA adapter. Raises `ValueError` for a folder without one, and for any other kind."""
    try:
        settings = json.loads((folder / SETTINGS).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{folder} holds no adapter that could be read ({error}); a peft folder with {SETTINGS} and {TENSORS} is "
            "required"
        ) from error
    kind = settings.get("peft_type")
    strange = [f"{name} = {settings[name]}" for name in EXTENSIONS if settings.get(name)]
    for name, plain in (("bias", (None, "none")), ("init_lora_weights", PLAIN_STARTS)):
        if settings.get(name) not in plain:
            strange.append(f"{name} = {settings[name]!r}")
    if kind != "LORA" or strange:
        raise ValueError(
            f"{folder} holds an adapter with {', '.join([f'peft_type = {kind!r}', *strange])}; only plain LoRA is "
            "trained and served: merge this one into the model (merge_and_unload of peft), and name that as the model"
        )
    return settings


def adapter_scale(settings: dict[str, Any]) -> float:
    """What B A is multiplied by."""
    rank = settings["r"]
    return settings["lora_alpha"] / (math.sqrt(rank) if settings.get("use_rslora") else rank)
