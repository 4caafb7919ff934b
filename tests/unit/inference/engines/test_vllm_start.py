"""Start of stock vLLM: flags, environment variables, and errors if it is not installed."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.inference import InferenceConfig
from braidrl.inference.engines.vllm import arguments, interpreter, variables


def config(**settings: object) -> InferenceConfig:
    return InferenceConfig.model_validate({"engine": "vllm", "model": {"path": "models/m"}, **settings})


def values(words: list[str], flag: str) -> list[str]:
    """Return the value after each occurrence of a flag."""
    return [after for word, after in pairwise(words) if word == f"--{flag}"]


def test_flags_say_what_the_config_says() -> None:
    parallel = {"tensor_parallel_size": 2, "pipeline_parallel_size": 3, "data_parallel_size": 4}
    words = arguments(
        config(
            model={"path": "models/m", "dtype": "bfloat16", "trust_remote_code": True},
            seq_len=512,
            seed=7,
            port=8123,
            max_batch_size=96,
            prefill_tokens=64,
            max_logprobs=130,
            vllm={**parallel, "args": ["--enforce-eager", "--max-logprobs", "200"]},
        )
    )
    assert words[:2] == ["-m", "vllm.entrypoints.openai.api_server"]
    expected = {
        "model": "models/m",
        "served-model-name": "models/m",
        "dtype": "bfloat16",
        "max-model-len": "512",
        "seed": "7",
        "host": "127.0.0.1",
        "port": "8123",
        "max-num-seqs": "96",
        "max-num-batched-tokens": "96",
        "logprobs-mode": "processed_logprobs",
        "tensor-parallel-size": "2",
        "pipeline-parallel-size": "3",
        "data-parallel-size": "4",
    }
    assert {flag: values(words, flag) for flag in expected} == {
        flag: [value] for flag, value in expected.items()
    }
    assert values(words, "max-logprobs") == ["130", "200"], "the user's comes last, and wins"
    assert {"--enable-scale-out", "--trust-remote-code", "--enforce-eager"} <= set(words)


def test_workers_that_meet_the_trainer_are_told_how() -> None:
    assert values(arguments(config()), "weight-transfer-config") == []
    words = arguments(config(vllm={"weight_transfer": True}))
    assert values(words, "weight-transfer-config") == ['{"backend": "nccl"}']


def test_a_fair_share_of_the_cores_binds_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "OMP_NUM_THREADS" not in variables(config())
    monkeypatch.setenv("SOME_KEY", "secret")
    found = variables(
        config(threads=2, api_key_var="SOME_KEY", vllm={"env": {"VLLM_CPU_KVCACHE_SPACE": "1"}})
    )
    assert found["OMP_NUM_THREADS"] == "2" and found["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert found["VLLM_API_KEY"] == "secret" and found["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_its_workers_see_the_extension_and_nothing_else_of_braid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    folder = Path(variables(config())["PYTHONPATH"])
    assert [path.name for path in folder.glob("*.py")] == ["braid_vllm.py"]
    look = "import braid_vllm; print(callable(braid_vllm.PolicyWorker.load_policy))"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}
    output = subprocess.run(
        [sys.executable, "-S", "-c", look], env=env, capture_output=True, text=True, check=True
    )
    assert output.stdout == "True\n"


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("/nowhere/python", "vllm.python: '/nowhere/python' is not an executable"),
        (None, r"vllm.python: .* has no vLLM; install it there \(pip install vllm\), or set the python"),
    ],
)
def test_a_missing_vllm_is_named(python: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        interpreter(config(vllm={"python": python}))
