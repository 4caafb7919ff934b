"""Fixtures that every tier shares."""

import json
import os
import signal
from pathlib import Path

import pytest

WORKED_CASES = Path(__file__).parent / "data" / "worked_cases"

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# One thread a process, for tests run in two workers and start processes of their own.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs so, and every process that a test starts and interrupts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def worked_cases() -> dict[str, list[dict]]:
    """The cases of each file in `tests/data/worked_cases`, by its stem (see `tests/data/README.md`)."""
    return {path.stem: json.loads(path.read_text())["cases"] for path in sorted(WORKED_CASES.glob("*.json"))}


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A randomly initialised Qwen3-architecture model with a byte-level tokenizer. Do not write into it."""
    from braidrl.utils.tiny_model import create_tiny_model

    return create_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
