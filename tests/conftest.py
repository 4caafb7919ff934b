"""Fixtures that every tier shares."""

import json
import os
import signal
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs so, and every process that a test starts and interrupts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of the specification, beside the project (`BRAID_SHARED` overrides)."""
    return Path(os.environ.get("BRAID_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture(scope="session")
def vectors(shared_dir: Path) -> dict:
    """Worked cases by item name; non-finite numbers are the strings `nan`, `inf`, `-inf`."""
    return json.loads((shared_dir / "spec" / "vectors.json").read_text())["items"]


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A randomly initialised Qwen3-architecture model with a byte-level tokenizer. Do not write into it."""
    from braidrl.utils.tiny_model import create_tiny_model

    return create_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
