"""Fixtures for vLLM, which is installed in a separate environment."""

import os
from pathlib import Path

import pytest

from braidrl.utils.tiny_model import create_tiny_model
from tests.support.paths import REPOSITORY


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """Interpreter of the vLLM environment: `BRAID_VLLM_PYTHON`, or the one created by `install_vllm.sh`. Tests are
    skipped if there is neither."""
    named = os.environ.get("BRAID_VLLM_PYTHON")
    path = Path(named) if named else REPOSITORY / ".venv-vllm" / "bin" / "python"
    assert not named or path.exists(), f"BRAID_VLLM_PYTHON names {named}, which is not there"
    if not path.exists():
        pytest.skip(
            f"no vLLM at {path}; tests/engines/install_vllm.sh makes one, BRAID_VLLM_PYTHON names another"
        )
    return path


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny model with heads of 32 dimensions, the minimum for vLLM's attention on a CPU."""
    return create_tiny_model(tmp_path_factory.mktemp("models") / "small", hidden_size=128, context=2048)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct: `BRAID_SMOLLM2` or `models/smollm2`. Tests are skipped if there is neither."""
    named = os.environ.get("BRAID_SMOLLM2")
    path = Path(named) if named else REPOSITORY / "models" / "smollm2"
    assert not named or path.is_dir(), f"BRAID_SMOLLM2 names {named}, which is not there"
    if not path.is_dir():
        pytest.skip(
            f"no SmolLM2-135M-Instruct at {path}; examples/smollm2.py makes it, BRAID_SMOLLM2 names another folder"
        )
    return path
