"""Stock vLLM as the engine: `braid inference` replaces itself with vLLM's OpenAI server and the flags that a run needs.

vLLM is neither imported nor patched here, so it can be installed in a separate environment (`vllm.python`).
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
"""Values that vLLM accepts for `--max-lora-rank`. Smaller adapters are padded."""
WORKER_FOLDER = Path(__file__).parents[1] / "vllm_worker"
"""Only part of Braid on the path of vLLM's interpreter."""
PROBE_SECONDS = 60.0
"""Timeout for checking that an interpreter has vLLM."""


def run(config: InferenceConfig) -> NoReturn:
    """Replace this process with the vLLM server. Raises `ConfigError` if vLLM is not installed."""
    python = interpreter(config)
    os.execve(python, [python, *arguments(config)], os.environ | variables(config))


def interpreter(config: InferenceConfig) -> str:
    """Return the path of the Python interpreter that has vLLM. Raises `ConfigError` if it does not have it."""
    wanted = config.vllm.python or sys.executable
    python = shutil.which(wanted)
    if python is None:
        raise ConfigError(
            "vllm.python", f"{wanted!r} is not an executable; set the python of an environment that has vLLM"
        )
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    if subprocess.run([python, "-c", probe], check=False, timeout=PROBE_SECONDS).returncode:
        raise ConfigError(
            "vllm.python",
            f"{python} has no vLLM; install it there (pip install vllm), or set the python of an environment that "
            "has it",
        )
    return python


def arguments(config: InferenceConfig) -> list[str]:
    """Return the command-line arguments after the interpreter."""
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
        # Log-probs after temperature and truncation, which the trainer reproduces.
        "logprobs-mode": "processed_logprobs",
        "max-logprobs": config.max_logprobs,
        # The trainer computes logits in float32 regardless of the model's dtype.
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
    # User arguments come last: vLLM uses the last value of a repeated flag.
    return ["-m", SERVER, *named, *(f"--{name}" for name in switches), *config.vllm.args]


def variables(config: InferenceConfig) -> dict[str, str]:
    """Return the server's environment variables. Raises `ValueError` if the variable of the API key is not set."""
    found = {
        "VLLM_SERVER_DEV_MODE": "1",  # opens /pause, /collective_rpc, ...
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(WORKER_FOLDER), os.environ.get("PYTHONPATH")])),
    }
    if config.vllm.lora_rank is not None:
        found["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"  # opens /v1/load_lora_adapter
    if config.threads is not None:
        # Processes share the cores, so vLLM must not pin its threads.
        found |= {"OMP_NUM_THREADS": str(config.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    if (key := read_api_key(config.api_key_var, "inference")) is not None:
        found["VLLM_API_KEY"] = key
    return found | config.vllm.env
