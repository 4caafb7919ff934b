"""Small random batches for the tests of the trainer, and a config to train on them."""

from pathlib import Path
from typing import Any

import numpy as np

from braidrl.configs.trainer.config import TrainerConfig
from braidrl.transport.types import TrainingSample

BYTES = 256
"""Number of token ids that are plain bytes in the tiny tokenizer."""


def make_sample(seed: int, component: str = "rl", prompt: int = 4, completion: int = 6) -> TrainingSample:
    """Return a sample whose completion is a member of one component (`rl`, `ce`, `ref_kl`)."""
    rng = np.random.default_rng(seed)
    length = prompt + completion
    mask = np.arange(length) >= prompt
    # approximate log-prob of a token under a random model
    logprobs = np.where(mask, rng.normal(-5.6, 0.1, length), 0).astype(np.float32)
    streams: dict[str, Any] = {"rl_weights": np.zeros(length, np.float32)}
    if component == "rl":
        streams = {"advantages": np.where(mask, rng.normal(), 0).astype(np.float32)}
    elif component == "ce":
        streams["ce_weights"] = np.where(mask, 1 + 0.1 * (seed % 3), 0).astype(np.float32)
    else:
        streams["ref_kl_weights"] = mask.astype(np.float32)
        streams["ref_logprobs"] = np.where(mask, rng.normal(-5, 0.5, length), 0).astype(np.float32)
    return TrainingSample(
        token_ids=rng.integers(0, BYTES, length).astype(np.int32),
        mask=mask,
        sampling_logprobs=logprobs,
        env=f"{component}-env",
        group_id=f"g{seed}",
        episode_id=f"e{seed}",
        trace_id=f"t{seed}",
        **streams,
    )


def make_batch(seed: int, component: str | None = None, size: int = 6) -> list[TrainingSample]:
    """Return samples of unequal lengths. Component None mixes all three."""
    kinds = [component] if component else ["rl", "ce", "ref_kl"]
    return [
        make_sample(
            100 * seed + index, kinds[index % len(kinds)], prompt=2 + index, completion=1 + 3 * (index % 4)
        )
        for index in range(size)
    ]


def trainer_config(model: Path, output_dir: Path, dtype: str = "float32", **changes: Any) -> TrainerConfig:
    """Return a config with one thread and an `eps` so large that rounding of tiny gradients does not cause AdamW
    steps."""
    defaults: dict[str, Any] = {"seq_len": 64, "max_steps": 2, "threads": 1, "batch_timeout": 5}
    defaults |= {"model": {"path": str(model), "dtype": dtype}, "output_dir": output_dir}
    defaults["optim"] = {"lr": 1e-2, "eps": 1e-3, "weight_decay": 0.1}
    return TrainerConfig.model_validate(defaults | changes)
