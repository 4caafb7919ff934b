"""Where the tests of this tier find vLLM: in an environment of its own, beside the project's."""

import os
from pathlib import Path

import pytest

from braidrl.utils.tiny_model import create_tiny_model
from tests.support.paths import REPOSITORY


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter that BRAID_VLLM_PYTHON names, or the one that `install_vllm.sh` made; without either the tests
    are skipped."""
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
    """A tiny model whose heads have 32 dimensions: for fewer, vLLM has no attention on a CPU."""
    return create_tiny_model(tmp_path_factory.mktemp("models") / "small", hidden_size=128, context=2048)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct: the folder that BRAID_SMOLLM2 names, or `models/smollm2`; without either the tests are
    skipped."""
    named = os.environ.get("BRAID_SMOLLM2")
    path = Path(named) if named else REPOSITORY / "models" / "smollm2"
    assert not named or path.is_dir(), f"BRAID_SMOLLM2 names {named}, which is not there"
    if not path.is_dir():
        pytest.skip(
            f"no SmolLM2-135M-Instruct at {path}; examples/smollm2.py makes it, BRAID_SMOLLM2 names another folder"
        )
    return path
