"""Stock vLLM as the engine: `braid inference` becomes its OpenAI server, with the flags that a run needs.

Nothing of it is patched or imported here, so it may live in an environment of its own (`vllm.python`).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.inference import BASE_SUFFIX, WORKER_EXTENSION, InferenceConfig
from braidrl.utils.http import read_api_key

SERVER = "vllm.entrypoints.openai.api_server"
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM makes room for; a smaller adapter is padded."""
WORKER_FOLDER = Path(__file__).parents[1] / "vllm_worker"
"""All of Braid that vLLM's interpreter sees."""
LOOK_SECONDS = 60.0
"""Longest wait for an interpreter to say what it has."""


def run(config: InferenceConfig) -> NoReturn:
    """Replace this process by the server. Raises `ConfigError` where there is none."""
    python = interpreter(config)
    os.execve(python, [python, *arguments(config)], os.environ | variables(config))


def interpreter(config: InferenceConfig) -> str:
    """Path of the Python that has vLLM. Raises `ConfigError`."""
    wanted = config.vllm.python or sys.executable
    python = shutil.which(wanted)
    if python is None:
        raise ConfigError(
            "vllm.python", f"{wanted!r} is no program; name the python of an environment that has vLLM"
        )
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    if subprocess.run([python, "-c", look], check=False, timeout=LOOK_SECONDS).returncode:
        raise ConfigError(
            "vllm.python",
            f"{python} has no vLLM; install it there (pip install vllm), or name the python of an environment that "
            "has it",
        )
    return python


def arguments(config: InferenceConfig) -> list[str]:
    """What follows the interpreter on the command line."""
    flags = {
        "host": config.host,
        "port": config.port,
        "model": config.model.path,
        "served-model-name": config.model.path + (BASE_SUFFIX if config.vllm.lora_rank else ""),
        "dtype": config.model.dtype,
        "seed": config.seed,
        "max-model-len": config.seq_len,
        "max-num-seqs": config.max_batch_size,
        "max-num-batched-tokens": max(config.prefill_tokens, config.max_batch_size),
        # log-probs of the distribution that was sampled from, as the trainer replays it
        "logprobs-mode": "processed_logprobs",
        "max-logprobs": config.max_logprobs,
        # the trainer computes logits in float32, whatever the type of the model
        "hf-overrides": '{"head_dtype": "float32"}',
        "tensor-parallel-size": config.vllm.tensor_parallel_size,
        "pipeline-parallel-size": config.vllm.pipeline_parallel_size,
        "data-parallel-size": config.vllm.data_parallel_size,
        "worker-extension-cls": WORKER_EXTENSION,
    }
    switches = ["enable-scale-out"]  # opens /inference/v1/generate
    if config.vllm.lora_rank is not None:
        switches.append("enable-lora")
        flags |= {
            "max-loras": 1,
            "max-lora-rank": min(rank for rank in LORA_RANKS if rank >= config.vllm.lora_rank),
        }
    if config.vllm.weight_transfer:
        flags["weight-transfer-config"] = '{"backend": "nccl"}'
    if config.share_device:
        switches.append("enable-sleep-mode")
    if config.model.trust_remote_code:
        switches.append("trust-remote-code")
    named = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    return ["-m", SERVER, *named, *(f"--{name}" for name in switches), *config.vllm.args]


def variables(config: InferenceConfig) -> dict[str, str]:
    """Environment variables of the server. Raises `ValueError` where the one with the API key is not set."""
    found = {
        "VLLM_SERVER_DEV_MODE": "1",  # opens /pause, /collective_rpc, ...
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(WORKER_FOLDER), os.environ.get("PYTHONPATH")])),
    }
    if config.vllm.lora_rank is not None:
        found["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"  # opens /v1/load_lora_adapter
    if config.threads is not None:
        # where processes share cores, none of them may bind its threads to some
        found |= {"OMP_NUM_THREADS": str(config.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    if (key := read_api_key(config.api_key_var, "inference")) is not None:
        found["VLLM_API_KEY"] = key
    return found | config.vllm.env
